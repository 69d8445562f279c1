"""From an answer to its reward: calls the function once, and reads whatever it returns or raises."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from hone.errors import UserError
from hone.user_code import quote

LARGEST = 3.4e38  # scores are fp32


@dataclass
class Reward:
    score: float | None  # None: not scored, the trajectory leaves its group
    extras: dict[str, float | str] = field(default_factory=dict)  # the other keys of a dict result: metrics
    error: str | None = None
    timeout: bool = False
    traceback: str = field(default="", repr=False, compare=False)


def score(function: Callable[..., Any], answer: Mapping[str, Any], file: str | None) -> Reward:
    """An exception or a bad result is a score of 0; `file` is the user's, for the line at fault."""
    try:
        return _read(function(**answer), name_of(function))
    except UserError:  # a mistake in the set-up (an unknown data source) would turn every score into 0
        raise
    except Exception as problem:
        return Reward(0.0, error=quote(problem, file), traceback=traceback.format_exc())


def _read(result: Any, name: str) -> Reward:
    value, extras = _plain(result), {}
    if isinstance(result, dict) and "score" in result:
        extras = {str(key): _metric(_plain(value)) for key, value in result.items() if key != "score"}
        value = _plain(result["score"])
    if value is None:
        return Reward(None, extras)
    if not isinstance(value, Real) or not abs(value) <= LARGEST:  # type: ignore[operator]  # NaN is in no order
        raise TypeError(
            f"{name} returned {result!r:.80} ({type(result).__name__}): expected a finite number of at most "
            f"{LARGEST:.2g}, a dict with the key 'score', or None for 'not scored'"
        )
    return Reward(float(value), extras)


def _plain(value: Any) -> Any:
    """Python's own number in place of a numpy scalar or a tensor without dimensions."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _metric(value: Any) -> float | str:
    return float(value) if isinstance(value, Real) else str(value)


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def refuse_if_all_raised(rewards: Sequence[Reward]) -> None:
    """A function that never gives a score is a mistake in it, and training on zeros would hide it."""
    if not rewards or any(reward.error is None or reward.timeout for reward in rewards):
        return
    raise UserError(
        f"all {len(rewards)} calls of the reward function failed, so there is nothing to learn from. The first: "
        f"{rewards[0].error}. It is called as compute_score(data_source=..., solution_str=..., ground_truth=..., "
        "extra_info=...)"
    )
