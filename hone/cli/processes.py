"""The processes of a run, from its configuration; they all end with the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hone.config.schema import GenerationConfig, PPOConfig, SFTConfig

if TYPE_CHECKING:
    from hone.cluster import Dealing, Executor


@contextmanager
def processes(config: PPOConfig | SFTConfig | GenerationConfig) -> Iterator[Executor]:
    """The executor that the numbers of nodes and ranks ask for."""
    from hone.cluster import ClusterOptions, executor_for

    trainer, start = config.trainer, config.ray_init
    executor = executor_for(
        ClusterOptions(
            nodes=trainer.nnodes,
            ranks_per_node=trainer.n_gpus_per_node,
            address=start.address,
            num_cpus=start.num_cpus,
            deadline=trainer.ray_wait_register_center_timeout,
            timeline=start.timeline_json_file,
            seed=trainer.seed,
            dealing=dealing_of(config),
        )
    )
    try:
        yield executor
    finally:
        executor.shutdown()


def dealing_of(config: PPOConfig | SFTConfig | GenerationConfig) -> Dealing:
    """How batches go to ranks; the rows of a fine-tuning batch always so that token counts are close."""
    from hone.cluster import Dealing

    if isinstance(config, PPOConfig):
        return Dealing(config.trainer.balance_batch, config.actor_rollout_ref.actor.use_prefix_grouper)
    return Dealing()
