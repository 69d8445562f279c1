"""What one agent run produced, and how a step's trajectories become one Batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from hone.batch import Batch
from hone.data.prompts import Sample


@dataclass
class Trajectory:
    """Token ids as they were sampled or inserted, in order; never decoded and encoded again.

    response_mask: 1 on tokens the policy sampled, 0 on tool output and template text
    logprobs:      of sampled tokens under the distribution they were drawn from, 0 elsewhere
    versions:      weight version that produced each token, -1 where the policy did not
    turn_rewards:  rewards given on the way
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

    Token columns: input_ids, response_mask, rollout_logprobs, versions. Row columns: prompt_length, group (long, equal
    for trajectories of the same prompt), uid, data_source, truncated, num_turns.
    """
    tokens = {
        "input_ids": [torch.tensor(t.prompt_ids + t.response_ids) for t in trajectories],
        "response_mask": [torch.tensor([0] * len(t.prompt_ids) + t.response_mask) for t in trajectories],
        "rollout_logprobs": [torch.tensor([0.0] * len(t.prompt_ids) + t.logprobs) for t in trajectories],
        "versions": [torch.tensor([-1] * len(t.prompt_ids) + t.versions) for t in trajectories],
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
