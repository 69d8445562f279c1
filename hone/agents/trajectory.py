"""What one agent run produced, and how a step's trajectories become one Batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    stop_reason:   stop, or length when a limit ended it: it is then counted as truncated
    num_turns:     for the metrics; None counts the runs of 1 in the mask
    turn_rewards:  one for each of the first turns, a turn being a run of 1 in the mask; added to the final score
    text:          the response decoded; the rank that made it fills it in
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    versions: list[int]
    stop_reason: str
    num_turns: int | None = None
    turn_rewards: list[float] = field(default_factory=list)
    text: str = ""


def compact(trajectory: Trajectory, text: str) -> Trajectory:
    """The same with arrays for lists, quick to send and to put together, its turns counted, and with `text`."""
    kinds = {"prompt_ids": np.int32, "response_ids": np.int32, "response_mask": np.int8, "versions": np.int32}
    arrays: dict[str, Any] = {name: np.asarray(getattr(trajectory, name), kind) for name, kind in kinds.items()}
    logprobs: Any = np.asarray(trajectory.logprobs, np.float32)
    return replace(trajectory, **arrays, logprobs=logprobs, num_turns=_turns(trajectory), text=text)


def to_batch(trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> Batch:
    """One row per trajectory; `samples[i]` is the prompt that trajectory i answers.

    Token columns: input_ids, response_mask, rollout_logprobs, versions, turn_rewards (on the last sampled token of
    each turn). Row columns: prompt_length, group (long, equal for trajectories of the same prompt), uid, data_source,
    truncated, num_turns.
    """
    starts = np.cumsum([0, *(len(t.prompt_ids) + len(t.response_ids) for t in trajectories)])
    tokens = {
        "input_ids": _empty(starts, 0, np.int64),
        "response_mask": _empty(starts, 0, np.int64),
        "rollout_logprobs": _empty(starts, 0, np.float32),
        "versions": _empty(starts, -1, np.int64),
        "turn_rewards": _empty(starts, 0, np.float32),
    }
    for trajectory, start, end in zip(trajectories, starts[:-1], starts[1:], strict=True):
        _fill({name: column[start:end] for name, column in tokens.items()}, trajectory)
    _, group = np.unique([s.uid for s in samples], return_inverse=True)
    rows = {
        "prompt_length": torch.tensor([len(t.prompt_ids) for t in trajectories]),
        "group": torch.from_numpy(group.astype(np.int64)),
        "uid": [s.uid for s in samples],
        "data_source": [s.data_source for s in samples],
        "truncated": torch.tensor([t.stop_reason == "length" for t in trajectories]),
        "num_turns": torch.tensor([_turns(t) for t in trajectories]),
    }
    columns = {name: torch.from_numpy(column) for name, column in tokens.items()}
    return Batch(torch.from_numpy(starts), columns).with_rows(**rows)


def _turns(trajectory: Trajectory) -> int:
    return len(turn_ends(trajectory.response_mask)) if trajectory.num_turns is None else int(trajectory.num_turns)


def turn_ends(response_mask: Sequence[int]) -> list[int]:
    """The place of the last token of every turn: of every run of 1."""
    sampled = np.asarray(response_mask, dtype=bool)
    return (np.flatnonzero(sampled & ~np.append(sampled[1:], False))).tolist()


def _empty(starts: np.ndarray, fill: int, dtype: type) -> np.ndarray:
    return np.full(starts[-1], fill, dtype)


def _fill(columns: Mapping[str, np.ndarray], trajectory: Trajectory) -> None:
    """Writes a trajectory into its part of the columns; the tokens of the prompt keep what stands there."""
    prompt = len(trajectory.prompt_ids)
    columns["input_ids"][:prompt] = trajectory.prompt_ids
    columns["input_ids"][prompt:] = trajectory.response_ids
    columns["response_mask"][prompt:] = trajectory.response_mask
    columns["rollout_logprobs"][prompt:] = trajectory.logprobs
    columns["versions"][prompt:] = trajectory.versions
    if len(trajectory.turn_rewards) > 0:
        for place, reward in zip(turn_ends(trajectory.response_mask), trajectory.turn_rewards, strict=False):
            columns["turn_rewards"][prompt + place] = float(reward)
