"""Rules about batch sizes: a step's prompts are cut into mini-batches, and a mini-batch is dealt to the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt, lcm

from .problems import Problem
from .schema import PPOConfig

ROLLOUT = "actor_rollout_ref.rollout"
BATCH = "data.train_batch_size"
ACTOR_MINI, CRITIC_MINI = "actor_rollout_ref.actor.ppo_mini_batch_size", "critic.ppo_mini_batch_size"
MOST_DIVISORS_TRIED = 100_000  # enough for batches up to 10^10; a larger one is a slip anyway


def batch_problems(config: PPOConfig) -> Iterator[Problem]:
    """What is wrong with mini-batches. Each remedy is right by itself: whoever follows it has no such problem left."""
    minis = _minis(config)
    for key in minis:
        yield from _of_mini_batch(key, config, minis)


def _minis(config: PPOConfig) -> dict[str, int]:
    minis = {ACTOR_MINI: config.actor_rollout_ref.actor.ppo_mini_batch_size}
    return {**minis, CRITIC_MINI: config.critic.ppo_mini_batch_size} if config.trains_critic else minis


def _shared_by(config: PPOConfig, key: str) -> int:
    role = config.critic if key == CRITIC_MINI else config.actor_rollout_ref.actor
    return role.ulysses_sequence_parallel_size


def _of_mini_batch(key: str, config: PPOConfig, minis: dict[str, int]) -> Iterator[Problem]:
    batch, n, mini = config.data.train_batch_size, config.actor_rollout_ref.rollout.n, minis[key]
    shared_by = _shared_by(config, key)
    takers = config.ranks // shared_by
    least = -(-takers // n)  # prompts that give every taker a trajectory
    remedies = _remedies(key, batch, mini, least, minis)
    if batch % mini:
        wrong = f"{BATCH}={batch} is {'less than' if batch < mini else 'not a multiple of'} {key}={mini}"
        expected = "train_batch_size = k * ppo_mini_batch_size with k >= 1 (both count prompts)"
        yield Problem(key, wrong, expected, f"set {', or '.join(remedies)}", (BATCH,))
    elif mini < least:
        who = f"{takers} ranks" if shared_by == 1 else f"{takers} groups of {shared_by} ranks"
        wrong = f"{mini} prompts x {ROLLOUT}.n={n} are {mini * n} trajectories for {who}"
        expected = "ppo_mini_batch_size * rollout.n >= number of ranks / ulysses_sequence_parallel_size"
        more = f"{ROLLOUT}.n={-(-takers // mini)}"
        yield Problem(key, wrong, expected, f"set {', or '.join([*remedies, more])}", (f"{ROLLOUT}.n",))


def _remedies(key: str, batch: int, mini: int, least: int, minis: dict[str, int]) -> Iterator[str]:
    """Settings that are right: another batch for the mini-batches as they are, or another mini-batch for the batch."""
    together = lcm(*minis.values())
    batches = {size for size in (batch // together * together, -(-batch // together) * together) if size > 0}
    if batch % mini and mini >= least:
        yield f"{BATCH}={' or '.join(map(str, sorted(batches)))}"
    if fitting := _divisors_near(batch, mini, least):
        yield f"{key}={' or '.join(map(str, fitting))}"
    if not fitting or (batch % mini and mini < least):
        others = lcm(*(size for name, size in minis.items() if name != key))
        larger = -(-max(least, batch) // others) * others
        if larger != mini or mini < least:  # else another batch alone is right, as said above
            yield f"{BATCH}={larger} and {key}={larger}"


def _divisors_near(batch: int, mini: int, least: int) -> list[int]:
    """The divisors of `batch` next to `mini` on both sides that are not below `least`."""
    smaller = range(1, min(isqrt(batch), MOST_DIVISORS_TRIED) + 1)
    divisors = [d for small in smaller if batch % small == 0 for d in (small, batch // small) if d >= least]
    lower = max((size for size in divisors if size < mini), default=None)
    upper = min((size for size in divisors if size > mini), default=None)
    return [size for size in (lower, upper) if size is not None]
