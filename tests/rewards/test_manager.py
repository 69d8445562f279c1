import logging
import threading
import time

import numpy as np
import pytest

from hone.errors import UserError
from hone.rewards import Reward, RewardManager


def returning(value):
    def constant(data_source, solution_str, ground_truth, extra_info):
        return value

    return RewardManager(constant)


def score(manager, text="text"):
    return manager.score_one("source", text, "truth", {"index": 1})


@pytest.mark.parametrize("value", [1, 0.5, True, np.float32(0.5), np.int64(2), np.bool_(False)])
def test_a_number_is_the_score(value):
    assert score(returning(value)) == Reward(float(value))


def test_a_dict_gives_the_score_and_its_other_keys_as_extras():
    reward = score(returning({"score": 0.5, "acc": True, "length": np.int64(3), "pred": "x", "why": None}))
    assert reward == Reward(0.5, {"acc": 1.0, "length": 3.0, "pred": "x", "why": "None"})


def test_none_is_not_scored_and_not_an_error():
    manager = returning(None)
    assert score(manager) == Reward(None)
    assert score(returning({"score": None, "kind": "skipped"})) == Reward(None, {"kind": "skipped"})
    assert (manager.errors, manager.timeouts) == (0, 0)


@pytest.mark.parametrize("value", ["1.0", {"reward": 1.0}, [1.0], float("nan"), float("inf"), {"score": "high"}])
def test_a_result_that_is_no_finite_number_is_an_error_that_names_the_function(value):
    manager = returning(value)
    reward = score(manager)
    assert reward.score == 0.0
    assert "constant" in reward.error
    assert "finite number" in reward.error
    assert manager.errors == 1


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_an_exception_scores_zero_is_counted_and_shown_once(caplog, timeout_s):
    def broken(data_source, solution_str, ground_truth, extra_info):
        raise KeyError(solution_str)

    manager = RewardManager(broken, timeout_s=timeout_s)
    with caplog.at_level(logging.WARNING):
        rewards = [score(manager, text) for text in ("first", "second", "third")]
    assert [reward.score for reward in rewards] == [0.0, 0.0, 0.0]
    assert rewards[1].error == "KeyError: 'second'"
    assert manager.errors == 3
    assert len(caplog.records) == 1
    assert "raise KeyError(solution_str)" in caplog.text
    assert "broken" in caplog.text


def test_a_call_past_its_time_scores_zero_and_does_not_hold_up_the_next(caplog):
    release = threading.Event()

    def slow(data_source, solution_str, ground_truth, extra_info):
        if solution_str == "slow":
            release.wait(30)
        return 1.0

    manager = RewardManager(slow, timeout_s=0.05)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        late, quick, again = score(manager, "slow"), score(manager, "quick"), score(manager, "slow")
    assert time.monotonic() - start < 10
    release.set()
    assert (late.score, late.timeout, again.timeout) == (0.0, True, True)
    assert quick == Reward(1.0)
    assert (manager.timeouts, manager.errors) == (2, 0)
    assert len(caplog.records) == 1


def test_a_timeout_error_raised_by_the_function_itself_is_an_error_not_a_time_out():
    def refused(data_source, solution_str, ground_truth, extra_info):
        raise TimeoutError("server")

    manager = RewardManager(refused, timeout_s=5.0)
    assert score(manager).error == "TimeoutError: server"
    assert (manager.errors, manager.timeouts) == (1, 0)


def test_the_function_gets_the_four_arguments_by_name():
    seen = {}

    def remember(solution_str, ground_truth, data_source, extra_info):
        seen.update(locals())
        return 1.0

    score(RewardManager(remember))
    expected = {"data_source": "source", "solution_str": "text", "ground_truth": "truth", "extra_info": {"index": 1}}
    assert {key: seen[key] for key in expected} == expected


def test_the_default_scores_by_data_source_and_stops_at_an_unknown_one():
    manager = RewardManager()
    assert manager.score_one("arithmetic", "5+8=13 #### 13", "13").score == 1.0
    with pytest.raises(UserError, match="No scorer for data source 'riddles'"):
        manager.score_one("riddles", "x", "y")
    assert manager.errors == 0
