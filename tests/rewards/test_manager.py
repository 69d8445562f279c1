"""One score per answer, whatever the reward function does."""

import inspect
import logging
import time

import pytest

from hone.errors import UserError
from hone.rewards import Reward, RewardManager
from hone.user_code import load_function
from tests.rewards import functions


def score(manager, text="text"):
    return manager.score_one("source", text, "truth", {"index": 1})


@pytest.fixture(scope="module")
def results():
    return RewardManager(functions.by_name)


@pytest.mark.parametrize(
    ("result", "expected"),
    [("int", 1.0), ("float", 0.5), ("bool", 1.0), ("float32", 0.5), ("int64", 2.0), ("numpy bool", 0.0)],
)
def test_a_number_is_the_score(results, result, expected):
    assert score(results, result) == Reward(expected)


def test_a_dict_gives_the_score_and_its_other_keys_as_extras(results):
    extras = {"acc": 1.0, "length": 3.0, "right": 1.0, "pred": "x", "why": "None"}
    assert score(results, "dict") == Reward(0.5, extras)


def test_none_is_not_scored_and_not_an_error():
    manager = RewardManager(functions.by_name)
    assert score(manager, "None") == Reward(None)
    assert score(manager, "None in a dict") == Reward(None, {"kind": "skipped"})
    assert (manager.errors, manager.timeouts) == (0, 0)


@pytest.mark.parametrize(
    "result", ["text", "dict without score", "list", "nan", "inf", "past fp32", "past fp64", "text in a dict"]
)
def test_a_result_that_is_no_finite_number_is_an_error_that_names_the_function(results, result):
    before = results.errors
    reward = score(results, result)
    assert reward.score == 0.0
    assert "by_name" in reward.error
    assert "finite number" in reward.error
    assert results.errors == before + 1


def test_an_exception_scores_zero_is_counted_and_shown_once(caplog):
    manager = RewardManager(load_function(functions.__file__, "raising"))
    with caplog.at_level(logging.WARNING):
        rewards = [score(manager, text) for text in ("first", "second", "third")]
        assert not caplog.records  # if all fail, the run ends and says it
        assert score(manager, "fine") == Reward(1.0)
        score(manager, "fourth")
    assert [reward.score for reward in rewards] == [0.0, 0.0, 0.0]
    line = inspect.getsourcelines(functions.raising)[1] + 3
    assert rewards[1].error == f"KeyError: 'second' ({functions.__file__}, line {line})"
    assert manager.errors == 4
    assert len(caplog.records) == 1
    assert "answer 'first'" in caplog.text
    assert "raise KeyError(solution_str)" in caplog.text
    assert "raising" in caplog.text


@pytest.mark.parametrize("how", ["asleep", "in C", "in a program"])
def test_a_call_past_its_time_scores_zero_and_does_not_hold_up_the_next(caplog, how):
    manager = RewardManager(functions.stuck, timeout_s=0.5)
    score(manager)  # the process has started
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        late, quick, again = score(manager, how), score(manager, "quick"), score(manager, how)
    assert time.monotonic() - start < 10
    assert (late.score, late.timeout, again.timeout) == (0.0, True, True)
    assert "no score within 0.5 s" in late.error
    assert quick == Reward(1.0)
    assert (manager.timeouts, manager.errors) == (2, 0)
    assert len(caplog.records) == 1


def test_a_process_that_ends_in_a_call_is_an_error_and_the_next_call_has_another():
    manager = RewardManager(functions.stuck)
    gone, next_one = score(manager, "gone"), score(manager)
    assert gone.score == 0.0 and "exit code 7" in gone.error
    assert next_one == Reward(1.0)
    assert (manager.timeouts, manager.errors) == (0, 1)


def test_what_waits_behind_a_call_that_ends_the_process_is_scored_by_the_next_one():
    manager = RewardManager(functions.stuck, timeout_s=0.5)
    score(manager)  # the process has started
    texts = ["quick", "asleep", "quick", "gone", "gone", "quick", "asleep", "quick"]
    pending = [manager.submit("source", text, "truth", {"index": 1}) for text in texts]
    found = [future.result(timeout=60) for future in pending]
    assert [r.score for r in found] == [1.0 if text == "quick" else 0.0 for text in texts]
    assert [r.timeout for r in found] == [text == "asleep" for text in texts]
    assert (manager.timeouts, manager.errors) == (2, 2)


def test_every_call_has_its_own_time_however_many_wait():
    manager = RewardManager(functions.counting, timeout_s=1.0)
    pending = [manager.submit("source", "400", "truth") for _ in range(5)]  # 2 s together
    assert [future.result(timeout=60).timeout for future in pending] == [False] * 5


def test_a_timeout_error_raised_by_the_function_itself_is_an_error_not_a_time_out():
    manager = RewardManager(functions.refused)
    assert score(manager).error.startswith("TimeoutError: server")
    assert (manager.errors, manager.timeouts) == (1, 0)


def test_the_function_gets_the_four_arguments_by_name():
    seen = score(RewardManager(functions.other_order)).extras["seen"]
    assert seen == "('source', 'text', 'truth', {'index': 1})"


def test_the_default_scores_by_data_source_and_stops_at_an_unknown_one():
    manager = RewardManager()
    assert manager.score_one("arithmetic", "5+8=13 #### 13", "13").score == 1.0
    with pytest.raises(UserError, match="No scorer for data source 'riddles'"):
        manager.score_one("riddles", "x", "y")
    assert manager.errors == 0
