"""What one agent run produced, and how a step's trajectories become one Batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hone.batch import Batch
from hone.data.prompts import Sample


@dataclass
class Trajectory:
    """Token ids as they were sampled or inserted, in order; never decoded and encoded again.

    response_mask: 1 on tokens the policy sampled, 0 on tool output and template text
    logprobs:      of sampled tokens under the distribution they were drawn from, 0 elsewhere
    versions:      weight version that produced each token, -1 where the policy did not
    turn_rewards:  one for each of the first turns, a turn being a run of 1 in the mask; added to the final score
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    stop_reason: str
    num_turns: int = 1
    turn_rewards: list[float] = field(default_factory=list)


def to_batch(trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> Batch:
    """One row per trajectory; `samples[i]` is the prompt that trajectory i answers.

    Token columns: input_ids, response_mask, rollout_logprobs, versions, turn_rewards (on the last sampled token of
    each turn). Row columns: prompt_length, group (long, equal for trajectories of the same prompt), uid, data_source,
    truncated, num_turns.
    """
    tokens = {
        "input_ids": [_joined(t.prompt_ids, t.response_ids, np.int64) for t in trajectories],
        "response_mask": [_behind_prompt(t, t.response_mask, 0, np.int64) for t in trajectories],
        "rollout_logprobs": [_behind_prompt(t, t.logprobs, 0, np.float32) for t in trajectories],
        "versions": [_behind_prompt(t, t.versions, -1, np.int64) for t in trajectories],
        "turn_rewards": [_behind_prompt(t, _token_rewards(t), 0, np.float32) for t in trajectories],
    }
    _, group = np.unique([s.uid for s in samples], return_inverse=True)
    rows = {
        "prompt_length": torch.tensor([len(t.prompt_ids) for t in trajectories]),
        "group": torch.from_numpy(group.astype(np.int64)),
        "uid": [s.uid for s in samples],
        "data_source": [s.data_source for s in samples],
        "truncated": torch.tensor([t.stop_reason == "length" for t in trajectories]),
        "num_turns": torch.tensor([t.num_turns for t in trajectories]),
    }
    return Batch.from_sequences(tokens, rows)


def turn_ends(response_mask: Sequence[int]) -> list[int]:
    """The place of the last token of every turn: of every run of 1."""
    sampled = [i for i, trainable in enumerate(response_mask) if trainable]
    return [i for i, following in zip(sampled, [*sampled[1:], -1], strict=True) if following != i + 1]


def _token_rewards(trajectory: Trajectory) -> list[float]:
    rewards = [0.0] * len(trajectory.response_mask)
    if len(trajectory.turn_rewards) > 0:
        for place, reward in zip(turn_ends(trajectory.response_mask), trajectory.turn_rewards, strict=False):
            rewards[place] = float(reward)
    return rewards


def _behind_prompt(trajectory: Trajectory, column: Sequence[float], fill: int, dtype: type) -> Tensor:
    """A column of the response with `fill` on the tokens of the prompt."""
    return _joined(np.full(len(trajectory.prompt_ids), fill), column, dtype)


def _joined(prompt: ArrayLike, response: ArrayLike, dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(prompt, dtype), np.asarray(response, dtype)]))
