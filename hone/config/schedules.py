"""Whether a learning-rate schedule fits the number of steps that a run has, which its data decide."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import PPOConfig, SFTConfig
from .schema.optim import OptimizerKeys


def schedule_problems(config: PPOConfig | SFTConfig, total_steps: int) -> Iterator[Problem]:
    """A warm-up that leaves no step for the fall that was asked for, or that never ends."""
    if isinstance(config, SFTConfig):
        yield from _schedule("optim", config.optim, config.optim.lr_scheduler, total_steps)
        return
    actor = config.actor_rollout_ref.actor.optim
    yield from _schedule("actor_rollout_ref.actor.optim", actor, actor.lr_scheduler_type, total_steps)
    if config.trains_critic:
        critic = config.critic.optim
        yield from _schedule("critic.optim", critic, critic.lr_scheduler_type, total_steps)


def _schedule(section: str, optim: OptimizerKeys, kind: str, total: int) -> Iterator[Problem]:
    by_steps = optim.lr_warmup_steps >= 0
    warmup = optim.lr_warmup_steps if by_steps else int(optim.lr_warmup_steps_ratio * total)
    last = total if kind == "constant" else total - 1
    if warmup == 0 or warmup <= last:
        return
    key = f"{section}.lr_warmup_steps{'' if by_steps else '_ratio'}"
    never = "its highest value" if kind == "constant" else f"min_lr_ratio={optim.min_lr_ratio:g} ({kind})"
    wrong = f"{warmup} steps of warm-up in a run of {total}: the learning rate never comes to {never}"
    fix = f"set {key}={max(total // 10, 0) if by_steps else 0.1}, or train for more steps"
    yield Problem(key, wrong, f"fewer than the run's {total} steps", fix)
