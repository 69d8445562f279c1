"""Rules about sharding over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import PPOConfig, SFTConfig
from .schema.fsdp import ShardingKeys


def rank_problems(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    """Shard groups that do not fit the number of ranks, and those that torch's older FSDP gets wrong."""
    for section, strategy, fsdp in _sharded(config):
        yield from _shard_group(f"{section}.fsdp_size", strategy, fsdp.fsdp_size, config.ranks)


def _sharded(config: PPOConfig | SFTConfig) -> Iterator[tuple[str, str, ShardingKeys]]:
    """The models of a run that are sharded: section, strategy and keys."""
    if isinstance(config, SFTConfig):
        yield "model.fsdp_config", config.model.strategy, config.model.fsdp_config
        return
    role = config.actor_rollout_ref
    yield "actor_rollout_ref.actor.fsdp_config", role.actor.strategy, role.actor.fsdp_config
    if config.needs_reference:
        yield "actor_rollout_ref.ref.fsdp_config", role.ref.strategy, role.ref.fsdp_config
    if config.trains_critic:
        yield "critic.model.fsdp_config", config.critic.strategy, config.critic.model.fsdp_config


def _shard_group(key: str, strategy: str, size: int, ranks: int) -> Iterator[Problem]:
    if ranks == 1:
        return  # nothing is sharded, and the same file may run on a cluster
    involves = ("trainer.n_gpus_per_node", "trainer.nnodes")
    divisors = " or ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
    if size == 0 or (size > 0 and ranks % size):
        wrong = f"{size} does not divide the {ranks} rank(s)"
        yield Problem(key, wrong, f"-1 (all ranks), {divisors}", f"set {key}=-1", involves)
    elif strategy == "fsdp" and size == 1 and ranks > 1:
        wrong = "1 with strategy fsdp gives wrong gradients in torch"
        yield Problem(key, wrong, "-1, or more than 1", "use strategy fsdp2, which replicates weights with 1", involves)
