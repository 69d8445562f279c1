"""How many processes a run has, where they are, and the executor that starts them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hone.cluster.dealing import Dealing
from hone.cluster.interface import Executor
from hone.cluster.local import LocalExecutor
from hone.errors import UserError


@dataclass(frozen=True)
class ClusterOptions:
    """nodes x ranks_per_node processes, each with a CPU and, where they run on GPUs, a GPU of its own.

    address:  of a running Ray cluster ("auto" finds the local one); None starts one here with `num_cpus`
    deadline: seconds for all ranks to be up
    timeline: file for Ray's record of what ran when
    """

    nodes: int = 1
    ranks_per_node: int = 1
    address: str | None = None
    num_cpus: int | None = None
    deadline: float = 300
    timeline: str | None = None
    seed: int = 0
    dealing: Dealing = field(default_factory=Dealing)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def executor_for(options: ClusterOptions) -> Executor:
    """One rank lives in the driver's own process; several are Ray actors."""
    if options.ranks == 1:
        return LocalExecutor()
    try:
        from hone.cluster.ray import RayExecutor
    except ModuleNotFoundError as error:
        raise UserError(
            f"trainer.nnodes={options.nodes} x trainer.n_gpus_per_node={options.ranks_per_node} ranks need Ray, which "
            "is not installed: pip install 'hone-rl[ray]', or set trainer.n_gpus_per_node=1"
        ) from error
    return RayExecutor(options)
