"""One process of a run: the roles that live in it, and its place among the ranks."""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hone.cluster.interface import Role
from hone.errors import UserError
from hone.models.precision import has_gpu

# Columns that come from shared memory are read-only, and nobody writes to a batch's columns.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
GATHER_SECONDS = 0.1  # what finishes within it travels to the driver together
COLLECTIVE_HOURS = 2


class RankProcess:
    """Built in a process of its own, whatever started it."""

    def __init__(self, rank: int, seed: int, directory: str) -> None:
        """`directory` is the driver's working directory, from which the relative paths of a configuration go out."""
        self.rank = rank
        self.seed = seed
        self.roles: dict[str, Any] = {}
        if os.path.isdir(directory):
            os.chdir(directory)
        if rank:
            logging.disable(logging.WARNING)  # one rank says what all would say

    def address(self) -> tuple[str, int]:
        """A host and a free port for the ranks to meet at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return _own_host(), port

    def place(self) -> tuple[str, int]:
        """Host and process id, for messages."""
        return socket.gethostname(), os.getpid()

    def meet(self, size: int, host: str, port: int, device: str, threads: int, neighbours: int) -> None:
        """Joins the other ranks. Everybody must call it. `neighbours` ranks share a machine, whose cores Ray may have
        been told to be more than they are."""
        if device == "cuda" and not has_gpu():
            raise UserError(
                f"rank {self.rank} on {socket.gethostname()} was given a GPU by Ray, but torch sees none there: "
                "install a build of torch for that GPU, or set trainer.device=cpu"
            )
        torch.set_num_threads(max(min(threads, (os.cpu_count() or 1) // neighbours), 1))
        # gloo beside nccl: weights that are kept in CPU memory are gathered there.
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"tcp://{host}:{port}",
            rank=self.rank,
            world_size=size,
            timeout=timedelta(hours=COLLECTIVE_HOURS),
        )

    def build(self, roles: Mapping[str, Role]) -> None:
        """All ranks build from one seed, since each keeps a part of the same weights, and then draw apart."""
        torch.manual_seed(self.seed)
        for name, role in roles.items():
            self.roles[name] = role.build(self.roles)
        gc.collect()
        gc.freeze()  # as in one process, see `LocalExecutor`
        torch.manual_seed(self.seed + self.rank)

    def run(self, role: str, method: str, *positional: Any, **arguments: Any) -> Any:
        return getattr(self.roles[role], method)(*positional, **arguments)

    def stream(self, role: str, method: str, items: Sequence[Any], arguments: Mapping[str, Any]) -> Iterator[list[Any]]:
        """What the role yields, in the lists that come together."""
        together: list[Any] = []
        sent = time.monotonic()
        for result in getattr(self.roles[role], method)(items, **arguments):
            together.append(result)
            if time.monotonic() - sent > GATHER_SECONDS:
                yield together
                together, sent = [], time.monotonic()
        if together:
            yield together


def _own_host() -> str:
    """The address under which other machines reach this one; the loopback address where there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing: asks which interface would
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
