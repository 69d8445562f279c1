"""The processes of a run, from its configuration; they all end with the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hone.config.schema import PPOConfig

if TYPE_CHECKING:
    from hone.cluster import Executor


@contextmanager
def processes(config: PPOConfig) -> Iterator[Executor]:
    """The executor that the numbers of nodes and ranks ask for."""
    from hone.cluster import ClusterOptions, Dealing, executor_for
    from hone.models.precision import pick_device

    trainer, start = config.trainer, config.ray_init
    executor = executor_for(
        ClusterOptions(
            nodes=trainer.nnodes,
            ranks_per_node=trainer.n_gpus_per_node,
            device=pick_device(trainer.device).type,
            address=start.address,
            num_cpus=start.num_cpus,
            deadline=trainer.ray_wait_register_center_timeout,
            timeline=start.timeline_json_file,
            seed=trainer.seed,
            dealing=Dealing(trainer.balance_batch, config.actor_rollout_ref.actor.use_prefix_grouper),
        )
    )
    try:
        yield executor
    finally:
        executor.shutdown()
