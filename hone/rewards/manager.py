"""Hands answers to the processes of the reward function, and counts what failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any
from weakref import finalize

from hone.errors import UserError
from hone.rewards.address import Address
from hone.rewards.process import ScoringProcess
from hone.rewards.reward import Reward, name_of
from hone.rewards.scorers import default_compute_score

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
PROCESSES = {"naive": 1, "prime": 8}  # of reward_model.reward_manager
TOGETHER = 128  # calls handed to a process at once, if so many wait


@dataclass
class Call:
    answer: dict[str, Any]
    future: Future[Reward]
    count: Callable[[Reward, dict[str, Any]], None]

    def finish(self, reply: Reward | UserError) -> None:
        if isinstance(reply, UserError):
            self.future.set_exception(reply)
        else:
            self.count(reply, self.answer)
            self.future.set_result(reply)


Calls = SimpleQueue[Call | None]


class RewardManager:
    """Calls `compute_score` on decoded text; an exception, a bad result or a time-out is a score of 0, and counted.

    The first error is shown as soon as another call has gone well: when all fail, the run ends and says so itself.
    With one process the calls run one after the other, in the order in which they came.
    """

    def __init__(
        self,
        compute_score: Callable[..., Any] = default_compute_score,
        *,
        timeout_s: float = TIMEOUT_S,
        processes: int = 1,
    ) -> None:
        self.name = name_of(compute_score)
        self.errors = 0
        self.timeouts = 0
        self._untold: str | None = None  # the first error, while all calls have failed
        self._went_well = False
        self._lock = threading.Lock()
        self._calls: Calls = SimpleQueue()
        address = Address.of(compute_score)
        for _ in range(processes):
            # Daemons: the run need not wait for a call that is stuck.
            arguments = (self._calls, ScoringProcess(address, timeout_s), processes)
            threading.Thread(target=_work, args=arguments, daemon=True, name=f"reward {self.name}").start()
        finalize(self, _stop, self._calls)

    def submit(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Future[Reward]:
        answer = {
            "data_source": data_source,
            "solution_str": solution_str,
            "ground_truth": ground_truth,
            "extra_info": extra_info,
        }
        future: Future[Reward] = Future()
        self._calls.put(Call(answer, future, self._count))
        return future

    def score_one(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Reward:
        return self.submit(data_source, solution_str, ground_truth, extra_info).result()

    def _count(self, reward: Reward, answer: dict[str, Any]) -> None:
        failed = reward.error is not None and not reward.timeout
        with self._lock:
            self.timeouts += reward.timeout
            self.errors += failed
            if failed and self.errors == 1:
                self._untold = self._told(reward, answer)
            self._went_well |= not failed
            warnings = [self._told(reward, answer)] if reward.timeout and self.timeouts == 1 else []
            if self._went_well and self._untold is not None:
                warnings.append(self._untold)
                self._untold = None
        for warning in warnings:
            logger.warning("%s", warning)

    def _told(self, reward: Reward, answer: dict[str, Any]) -> str:
        return (
            f"the reward function {self.name} failed, the score is 0: {reward.error}; data source "
            f"'{answer['data_source']}', ground truth {answer['ground_truth']!r:.80}, answer "
            f"{answer['solution_str']!r:.200}. Later failures of this kind are only counted.\n{reward.traceback}"
        )


def _work(calls: Calls, process: ScoringProcess, processes: int) -> None:
    while together := _take(calls, processes):
        _finish(together, process)
        together.clear()  # they hold the manager, whose end is the sign to stop


def _finish(together: Sequence[Call], process: ScoringProcess) -> None:
    replies = process([call.answer for call in together])
    try:
        for call, reply in zip(together, replies, strict=True):
            call.finish(reply)
    except BaseException as problem:
        for call in together:
            if not call.future.done():
                call.future.set_exception(problem)


def _take(calls: Calls, processes: int) -> list[Call]:
    """Waits for a call and takes with it a fair share of those behind it; nothing when it is time to stop."""
    together: list[Call] = []
    for _ in range(max(1, min(TOGETHER, calls.qsize() // processes))):
        try:
            call = calls.get(block=not together)
        except Empty:
            break
        if call is None:
            calls.put(None)  # for when these are done
            break
        together.append(call)
    return together


def _stop(calls: Calls) -> None:
    calls.put(None)
