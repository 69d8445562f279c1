"""Scores as columns: what the reward function said, the penalty on long responses, the baseline of a greedy one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from hone.algorithms import overlong_penalty
from hone.batch import Batch
from hone.config.schema.reward import OverlongBuffer
from hone.errors import UserError
from hone.rewards import Reward, refuse_if_all_raised
from hone.trainers.sampling import Sampled

logger = logging.getLogger(__name__)

MAX_UNSCORED = 3  # batches of answers


class Scoring:
    """How rewards become numbers; `max_response_length` is where the penalty is largest."""

    def __init__(self, overlong: OverlongBuffer, max_response_length: int) -> None:
        self.overlong = overlong
        self.max_response_length = max_response_length
        self.unscored_in_a_row = 0

    def check(self, rewards: Sequence[Reward]) -> None:
        """Answers that are all not scored cannot be trained on: a warning, for a judge that is away for a moment, and
        a UserError when it happens again and again, or when all calls failed."""
        refuse_if_all_raised(rewards)
        if not rewards or any(reward.score is not None for reward in rewards):
            self.unscored_in_a_row = 0
            return
        self.unscored_in_a_row += 1
        found = f"the reward function returned None (not scored) for all {len(rewards)} answers"
        if self.unscored_in_a_row == MAX_UNSCORED:
            raise UserError(f"{found}, {MAX_UNSCORED} times in a row: there is nothing to learn from; return scores")
        logger.warning("%s, so nothing is learned from them", found)

    def penalties(self, response_lengths: Tensor) -> Tensor:
        """[N] what is added to the scores: at most 0."""
        if not self.overlong.enable:
            return torch.zeros(len(response_lengths))
        return overlong_penalty(
            response_lengths, self.max_response_length, self.overlong.len, self.overlong.penalty_factor
        )

    def shaping(self, sampled: Sampled) -> list[float]:
        """What is added to each score: the penalty, and the rewards that the agent gave on the way."""
        penalties = self.penalties(torch.tensor([len(t.response_ids) for t in sampled.trajectories])).tolist()
        return [penalty + sum(t.turn_rewards) for penalty, t in zip(penalties, sampled.trajectories, strict=True)]

    def add_scores(self, batch: Batch, rewards: Sequence[Reward]) -> tuple[Batch, dict[str, float]]:
        """Row columns score, scored (False where the reward function said None) and penalty."""
        self.check(rewards)
        penalties = self.penalties(batch.lengths - batch["prompt_length"])
        batch = batch.with_rows(score=_scores(rewards), scored=_scored(rewards), penalty=penalties)
        return batch, {"overlong/penalty/mean": float(penalties.mean())} if self.overlong.enable else {}

    def add_greedy_rewards(self, batch: Batch, greedy: Sampled) -> tuple[Batch, dict[str, float]]:
        """Row column greedy_reward; a trajectory whose baseline is not scored counts as not scored itself."""
        rewards = greedy.rewards()
        shaped = _scores(rewards) + torch.tensor(self.shaping(greedy))
        place = {sample.uid: i for i, sample in enumerate(greedy.samples)}
        of_row = torch.tensor([place[uid] for uid in batch["uid"]])
        scored = _scored(rewards)
        metrics = {"critic/greedy_reward/mean": float(shaped[scored].mean())} if bool(scored.any()) else {}
        return batch.with_rows(greedy_reward=shaped[of_row], scored=batch["scored"] & scored[of_row]), metrics


def shaped_scores(batch: Batch) -> Tensor:
    """[N] the scores with their penalties, which advantages are made of."""
    return batch["score"] + batch["penalty"] if "penalty" in batch else batch["score"]


def turn_sums(batch: Batch) -> Tensor:
    """[N] what an agent gave a trajectory on the way."""
    return batch.row_sums(batch["turn_rewards"])


def _scores(rewards: Sequence[Reward]) -> Tensor:
    return torch.tensor([0.0 if r.score is None else r.score for r in rewards])


def _scored(rewards: Sequence[Reward]) -> Tensor:
    return torch.tensor([r.score is not None for r in rewards])
