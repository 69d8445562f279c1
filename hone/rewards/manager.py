"""Hands answers to the processes of the reward function, and counts what failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import finalize

from hone.rewards.address import Address
from hone.rewards.process import ScoringProcess
from hone.rewards.reward import Reward, name_of
from hone.rewards.scorers import default_compute_score

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
PROCESSES = {"naive": 1, "prime": 8}  # of reward_model.reward_manager
Calls = SimpleQueue[Callable[[ScoringProcess], None] | None]


class RewardManager:
    """Calls `compute_score` on decoded text; an exception, a bad result or a time-out is a score of 0, and counted.

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
        self._lock = threading.Lock()
        self._calls: Calls = SimpleQueue()
        address = Address.of(compute_score)
        for _ in range(processes):
            # Daemons: the run need not wait for a call that is stuck.
            arguments = (self._calls, ScoringProcess(address, timeout_s))
            threading.Thread(target=_work, args=arguments, daemon=True, name=f"reward {self.name}").start()
        finalize(self, _stop, self._calls, processes)

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
        self._calls.put(partial(self._score, answer, future))
        return future

    def score_one(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
    ) -> Reward:
        return self.submit(data_source, solution_str, ground_truth, extra_info).result()

    def _score(self, answer: dict[str, Any], future: Future[Reward], process: ScoringProcess) -> None:
        try:
            reward = process(answer)
            self._count(reward, answer)
            future.set_result(reward)
        except BaseException as problem:
            future.set_exception(problem)

    def _count(self, reward: Reward, answer: dict[str, Any]) -> None:
        if reward.error is None:
            return
        with self._lock:
            self.timeouts += reward.timeout
            self.errors += not reward.timeout
            first = (self.timeouts if reward.timeout else self.errors) == 1
        if first:
            logger.warning(
                "the reward function %s failed, the score is 0: %s; data source '%s', ground truth %.80r, "
                "answer %.200r. Later failures of this kind are only counted.\n%s",
                self.name,
                reward.error,
                answer["data_source"],
                answer["ground_truth"],
                answer["solution_str"],
                reward.traceback,
            )


def _work(calls: Calls, process: ScoringProcess) -> None:
    while (call := calls.get()) is not None:
        call(process)
        del call  # it holds the manager, whose end is the sign to stop


def _stop(calls: Calls, processes: int) -> None:
    for _ in range(processes):
        calls.put(None)
