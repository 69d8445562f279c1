"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups whose responses are all alike teach nothing and are
replaced by further prompts until a step has enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hone.config.check import GROUP_METRICS
from hone.config.schema.algorithm import FilterGroups
from hone.errors import UserError
from hone.rewards import Reward, refuse_if_all_raised
from hone.trainers.metrics import failures
from hone.trainers.sampling import Sampled
from hone.trainers.scoring import Scoring


def sample_informative(
    draw: Callable[[], Sampled], groups: FilterGroups, scoring: Scoring, *, prompts: int, n: int
) -> tuple[Sampled, dict[str, float]]:
    """Calls `draw` for one batch of prompts after the other and keeps the first `prompts` groups that differ within.

    Failed reward calls are counted over all that was drawn: a group that failed as a whole is all alike.
    """
    kept, batches = Sampled.none(), 0
    drawn: list[Reward] = []
    while len(kept) < prompts * n:
        if batches and batches == groups.max_num_gen_batches:
            raise _too_few(groups, len(kept) // n, prompts)
        sampled = draw()
        batches += 1
        drawn += sampled.rewards()
        refuse_if_all_raised(drawn)
        scoring.check(sampled.rewards())
        kept = kept + sampled.rows(_informative(sampled, groups.metric, scoring, n))
    return kept.rows(range(prompts * n)), {**failures(drawn), "train/num_gen_batches": float(batches)}


def _informative(sampled: Sampled, metric: str, scoring: Scoring, n: int) -> list[int]:
    """The rows of groups with two different values of the metric; what is not scored says nothing."""
    rewards = sampled.rewards()
    values = [_value(r, metric, added) for r, added in zip(rewards, scoring.shaping(sampled), strict=True)]
    _check_known(metric, rewards)
    groups = [range(start, start + n) for start in range(0, len(rewards), n)]
    return [row for group in groups if len({values[i] for i in group if values[i] is not None}) > 1 for row in group]


def _value(reward: Reward, metric: str, added: float) -> float | str | None:
    if reward.score is None:
        return None
    if metric in GROUP_METRICS:
        return reward.score if metric == "score" else reward.score + added
    return reward.extras.get(metric, 0.0)  # a failed call has a score of 0 and nothing beside it


def _check_known(metric: str, rewards: Sequence[Reward]) -> None:
    sound = [reward for reward in rewards if reward.error is None and reward.score is not None]
    if metric in GROUP_METRICS or not sound or any(metric in reward.extras for reward in sound):
        return
    extras = sorted({name for reward in sound for name in reward.extras})
    raise UserError(
        f"algorithm.filter_groups.metric={metric}: the reward function returns no such key. There are "
        f"{', '.join([*GROUP_METRICS, *extras])}; set one of them"
    )


def _too_few(groups: FilterGroups, found: int, prompts: int) -> UserError:
    return UserError(
        f"algorithm.filter_groups.max_num_gen_batches={groups.max_num_gen_batches}: after so many batches of prompts "
        f"only {found} of data.train_batch_size={prompts} groups have responses that differ in {groups.metric}. Raise "
        "it (0 sets no bound), lower data.train_batch_size, raise actor_rollout_ref.rollout.n, or use prompts that the "
        "model solves sometimes"
    )
