"""Turns answers into rewards by calling a reward function: one score per trajectory, whatever the function does."""

import logging
import math
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from hone.errors import UserError
from hone.rewards.scorers import default_compute_score

logger = logging.getLogger(__name__)


@dataclass
class Reward:
    score: float | None  # None: not scored, the trajectory leaves its group
    extras: dict[str, float | str] = field(default_factory=dict)  # the other keys of a dict result: metrics
    error: str | None = None
    timeout: bool = False


class RewardManager:
    """Calls `compute_score` on decoded text; an exception, a bad result or a time-out is a score of 0, and counted."""

    def __init__(
        self, compute_score: Callable[..., Any] = default_compute_score, *, timeout_s: float | None = None
    ) -> None:
        self.compute_score = compute_score
        self.timeout_s = timeout_s
        self.errors = 0
        self.timeouts = 0
        self._lock = threading.Lock()

    def score_one(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Reward:
        answer = {
            "data_source": data_source,
            "solution_str": solution_str,
            "ground_truth": ground_truth,
            "extra_info": extra_info,
        }
        try:
            return self._read(call_within(self.timeout_s, self.compute_score, answer))
        except UserError:  # a mistake in the set-up (an unknown data source) would turn every score into 0
            raise
        except ScoreTimeoutError:
            self._count_timeout(answer)
            return Reward(0.0, error=f"no score within {self.timeout_s} s", timeout=True)
        except Exception as problem:
            self._count_error(answer)
            return Reward(0.0, error=f"{type(problem).__name__}: {problem}")

    def _read(self, result: Any) -> Reward:
        if result is None:
            return Reward(None)
        extras: dict[str, float | str] = {}
        if isinstance(result, dict) and "score" in result:
            extras = {str(key): _metric(value) for key, value in result.items() if key != "score"}
            result = result["score"]
        if result is None:
            return Reward(None, extras)
        if not isinstance(result, Real | np.bool_) or not math.isfinite(result):
            raise TypeError(
                f"{_name(self.compute_score)} returned {result!r:.80} ({type(result).__name__}): expected a "
                "finite number, a dict with the key 'score', or None for 'not scored'"
            )
        return Reward(float(result), extras)

    def _count_error(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self.errors += 1
            first = self.errors == 1
        if first:
            logger.warning(
                "the reward function %s failed, the score is 0; data source '%s', ground truth %.80r, answer %.200r. "
                "Later failures are only counted.\n%s",
                _name(self.compute_score),
                answer["data_source"],
                answer["ground_truth"],
                answer["solution_str"],
                traceback.format_exc(),
            )

    def _count_timeout(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self.timeouts += 1
            first = self.timeouts == 1
        if first:
            logger.warning(
                "the reward function %s gave no score within %s s, the score is 0; data source '%s', answer %.200r. "
                "Later time-outs are only counted.",
                _name(self.compute_score),
                self.timeout_s,
                answer["data_source"],
                answer["solution_str"],
            )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _metric(value: Any) -> float | str:
    return float(value) if isinstance(value, Real | np.bool_) else str(value)


class ScoreTimeoutError(Exception):
    """The call is still running; its thread is left behind."""


def call_within(timeout_s: float | None, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """`function(**arguments)`, in a thread of its own if there is a time limit.

    A daemon thread, not a pool: Python cannot stop a thread, and a stuck one must not keep the run from ending.
    """
    if timeout_s is None:
        return function(**arguments)
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = function(**arguments)
        except Exception as problem:
            outcome["problem"] = problem

    thread = threading.Thread(target=run, daemon=True, name=f"reward {_name(function)}")
    thread.start()
    thread.join(timeout_s)
    if "problem" in outcome:
        raise outcome["problem"]
    if "result" not in outcome:
        raise ScoreTimeoutError
    return outcome["result"]
