"""What the machines of a cluster offer, held against what a run asks of them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from hone.cluster.options import ClusterOptions
from hone.errors import UserError
from hone.models.precision import has_gpu, pick_device

logger = logging.getLogger(__name__)
ANSWER_SECONDS = 10


@dataclass(frozen=True)
class Node:
    """One machine as Ray knows it; in use or not."""

    cpus: float
    gpus: float

    def holds(self, ranks: int, device: str) -> bool:
        """Every rank takes a CPU, and on cuda a GPU as well."""
        return self.cpus >= ranks and (device != "cuda" or self.gpus >= ranks)


def choose_device(wanted: str, nodes: Sequence[Node], options: ClusterOptions) -> str:
    """cpu or cuda, for all ranks. In a cluster that is joined `auto` looks at the cluster, which is where the ranks
    will be, and not at the command's own machine."""
    if options.address is None or wanted != "auto":
        return wanted if wanted != "auto" else pick_device("auto").type
    if any(node.gpus for node in nodes):
        return "cuda"
    if has_gpu():
        logger.warning(
            "the ranks run on CPUs: this machine has a GPU, but the cluster at ray_init.address=%s has none",
            options.address,
        )
    return "cpu"


def require_room(nodes: Sequence[Node], options: ClusterOptions, device: str) -> None:
    """Raises UserError when the ranks could never all be placed: Ray itself would wait for ever."""
    if sum(node.holds(options.ranks_per_node, device) for node in nodes) >= options.nodes:
        return
    each = f"{options.ranks_per_node} CPUs" + (f" and {options.ranks_per_node} GPUs" if device == "cuda" else "")
    have = ", ".join(f"{n.cpus:g} CPUs" + (f" and {n.gpus:g} GPUs" if device == "cuda" else "") for n in nodes)
    raise UserError(
        f"trainer.nnodes={options.nodes} x trainer.n_gpus_per_node={options.ranks_per_node} ranks need "
        f"{options.nodes} node(s) with {each} each; Ray's {len(nodes)} node(s) have {have}. "
        + _remedy(len(nodes), options, device)
    )


def require_reachable(address: str) -> None:
    """Raises UserError where nothing answers at HOST:PORT, since Ray tries for minutes. Other addresses are Ray's."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"Ray could not be reached (ray_init.address={address}): {error}; it is the address that "
            "`ray start --head` printed, or auto on a machine of the cluster"
        ) from error


def _remedy(found: int, options: ClusterOptions, device: str) -> str:
    ways = ["Set fewer ranks"]
    if options.address is not None:
        ways.append("add machines to the cluster with `ray start`")
    elif found < options.nodes:
        ways.append("set ray_init.address to join a cluster of that many machines")
    elif device == "cpu":
        ways.append("raise ray_init.num_cpus")
    if device == "cuda":
        ways.append("set trainer.device=cpu")
    return ", or ".join(ways)
