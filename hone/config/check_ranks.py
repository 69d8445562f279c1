"""Rules about sharding weights and sequences over ranks."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import PPOConfig, SFTConfig
from .schema.fsdp import FsdpConfig, ShardingKeys

RANKS = ("trainer.n_gpus_per_node", "trainer.nnodes")
SEQUENCE_RANKS = "ulysses_sequence_parallel_size"


def rank_problems(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    """What does not fit the number of ranks, or cannot be shared by them."""
    yield from _shard_groups(config)
    for section, size, packing, packed in _sharing_sequences(config):
        yield from sequence_problems(f"{section}{SEQUENCE_RANKS}", size, config.ranks, packing, packed=packed)
    if isinstance(config, PPOConfig):
        yield from _reference_sequences(config)


def _sharing_sequences(config: PPOConfig | SFTConfig) -> Iterator[tuple[str, int, str, bool]]:
    """The models of a run: section, ranks that share its sequences, and the key that packs them with its value."""
    if isinstance(config, SFTConfig):
        yield "", config.ulysses_sequence_parallel_size, "model.use_remove_padding", config.model.use_remove_padding
        return
    role, critic = config.actor_rollout_ref, config.critic
    policy = "actor_rollout_ref.model.use_remove_padding", role.model.use_remove_padding
    yield "actor_rollout_ref.actor.", role.actor.ulysses_sequence_parallel_size, *policy
    if config.needs_reference:
        yield "actor_rollout_ref.ref.", role.ref.ulysses_sequence_parallel_size, *policy
    if config.trains_critic:
        packing = "critic.model.use_remove_padding", critic.model.use_remove_padding
        yield "critic.", critic.ulysses_sequence_parallel_size, *packing


def sequence_problems(key: str, size: int, ranks: int, packing: str, *, packed: bool) -> Iterator[Problem]:
    """What keeps `size` ranks from sharing sequences; `packing` is the key that lays them end to end."""
    if ranks % size:
        wrong = f"{size} does not divide the {ranks} rank(s)"
        yield Problem(key, wrong, _divisors(ranks), f"set {key}=1", RANKS)
    elif size > 1 and not packed:
        wrong = f"is {size}, but with {packing}=False sequences are padded to rectangles, which ranks do not share"
        yield Problem(key, wrong, "packed sequences", f"set {packing}=True", (packing,))


def _reference_sequences(config: PPOConfig) -> Iterator[Problem]:
    """Where the reference has to share sequences as the actor does."""
    actor, algorithm, role = config.actor_rollout_ref.actor, config.algorithm, config.actor_rollout_ref
    size, other = role.ref.ulysses_sequence_parallel_size, actor.ulysses_sequence_parallel_size
    if not config.needs_reference or size == other:
        return
    in_loss = actor.use_kl_loss and actor.kl_loss_type == "full"
    in_reward = algorithm.use_kl_in_reward and algorithm.kl_penalty == "full"
    if role.model.trains_adapter:
        why, because = "actor_rollout_ref.model.lora_rank", "with LoRA the reference is the actor's own model"
    elif in_loss or in_reward:
        why = "actor_rollout_ref.actor.kl_loss_type" if in_loss else "algorithm.kl_penalty"
        because = f"{why}=full compares both where a token is computed"
    else:
        return
    key = "actor_rollout_ref.ref.ulysses_sequence_parallel_size"
    wrong = f"{size} differs from the actor's {other}, but {because}"
    involves = (why, "actor_rollout_ref.actor.ulysses_sequence_parallel_size")
    yield Problem(key, wrong, "the actor's size", f"remove {key}", involves)


def _shard_groups(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    """Shard groups that do not fit the number of ranks, and those that torch's older FSDP gets wrong."""
    for section, strategy, fsdp in _sharded(config):
        yield from _shard_group(f"{section}.fsdp_size", strategy, fsdp.fsdp_size, config.ranks)
        if strategy == "fsdp" and isinstance(fsdp, FsdpConfig) and fsdp.offload_policy:
            yield _policy_without_fsdp2(section)


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
    if size == 0 or (size > 0 and ranks % size):
        wrong = f"{size} does not divide the {ranks} rank(s)"
        yield Problem(key, wrong, f"-1 (all ranks), {_divisors(ranks)}", f"set {key}=-1", RANKS)
    elif strategy == "fsdp" and size == 1 and ranks > 1:
        wrong = "1 with strategy fsdp gives wrong gradients in torch"
        yield Problem(key, wrong, "-1, or more than 1", "use strategy fsdp2, which replicates weights with 1", RANKS)


def _policy_without_fsdp2(section: str) -> Problem:
    return Problem(
        f"{section}.offload_policy",
        "True is for strategy fsdp2 alone",
        "False",
        f"use strategy fsdp2, or set {section}.param_offload=True and {section}.optimizer_offload=True",
    )


def _divisors(ranks: int) -> str:
    return " or ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
