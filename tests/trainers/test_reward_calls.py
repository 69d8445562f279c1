"""What a run does with a reward function that is late, fails, or stops itself by an alarm."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from hone.config import load
from hone.config.schema.algorithm import FilterGroups
from hone.config.schema.reward import OverlongBuffer
from hone.errors import UserError
from hone.rewards import Reward, RewardManager
from hone.trainers.dynamic_sampling import sample_informative
from hone.trainers.evaluate import evaluate
from hone.trainers.scoring import Scoring
from tests.shows import shows
from tests.trainers.ragged import random_batch
from tests.trainers.runs import ROLLOUT, Run, Stage
from tests.trainers.test_dynamic_sampling import sampled

FUNCTIONS = '''
import re
import signal
import time


def sometimes_stuck(data_source, solution_str, ground_truth, extra_info):
    """One step's answers differ, and about a third of them are stuck where no thread can run."""
    if sum(map(ord, solution_str)) % 3 == 0:
        re.match(r"(a+)+$", "a" * 60 + "b")
    return 1.0


def by_alarm(data_source, solution_str, ground_truth, extra_info):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    signal.alarm(0)
    return sum(map(ord, solution_str)) % 7 / 7


def sometimes_raising(data_source, solution_str, ground_truth, extra_info):
    return 1.0 / (sum(map(ord, solution_str)) % 3)


def raising(data_source, solution_str, ground_truth, extra_info):
    return int("no number")


def another_signature(text):
    return 1.0


def in_training_alone(data_source, solution_str, ground_truth, extra_info):
    return 1 / (extra_info["split"] == "train")
'''


@pytest.fixture
def own(stage: Stage) -> partial[list[str]]:
    path = stage.directory / "mine.py"
    path.write_text(FUNCTIONS)
    return partial(lambda name: [f"custom_reward_function.path={path}", f"custom_reward_function.name={name}"])


def scores(run: Run, step: int = 1) -> list[tuple[str, float]]:
    return [(line["output"], line["score"]) for line in run.lines(f"rollout/{step}.jsonl")]


def dumped(stage: Stage, name: str, *more: str) -> Run:
    return stage.run_ppo(name, f"trainer.rollout_data_dir={stage.directory}/{name}/rollout", *more)


def test_a_call_that_is_stuck_scores_zero_is_counted_and_the_run_goes_on(
    stage: Stage, own: partial[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.trainers.ppo_setup.RewardManager", partial(RewardManager, timeout_s=0.5))
    run = dumped(stage, "run", *own("sometimes_stuck"))
    for step, line in enumerate(run.lines(), start=1):
        late = [text for text, score in scores(run, step) if sum(map(ord, text)) % 3 == 0]
        assert {score for text, score in scores(run, step) if text in late} == ({0.0} if late else set())
        assert (line["reward/timeouts"], line["reward/errors"]) == (len(late), 0.0)
    assert sum(line["reward/timeouts"] for line in run.lines()) > 0


def test_training_and_evaluation_score_a_function_with_an_alarm_alike(stage: Stage, own: partial[list[str]]) -> None:
    run = dumped(stage, "run", *own("by_alarm"))
    found = scores(run)
    assert run.lines()[0]["reward/errors"] == 0.0
    assert [score for _, score in found] == [sum(map(ord, text)) % 7 / 7 for text, _ in found]
    path = stage.directory / "answers.jsonl"
    row = {"data_source": "sums", "reward_model": {"ground_truth": ""}, "responses": [text for text, _ in found]}
    path.write_text(json.dumps(row))
    metrics = evaluate(load("eval", [f"data.path={path}", *own("by_alarm")]))
    assert metrics[f"val-core/sums/reward/mean@{len(found)}"] == pytest.approx(sum(s for _, s in found) / len(found))


@shows("reward_model.reward_manager")
@pytest.mark.parametrize(("manager", "processes"), [("naive", 1), ("prime", 8)])
def test_the_reward_manager_says_how_many_calls_run_at_once(
    stage: Stage, manager: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Watched(RewardManager):
        def __init__(self, *arguments: object, processes: int, **more: object) -> None:
            asked.append(processes)
            super().__init__(*arguments, processes=processes, **more)  # type: ignore[arg-type]

    plain = stage.run_ppo("plain")
    monkeypatch.setattr("hone.trainers.ppo_setup.RewardManager", Watched)
    run = stage.run_ppo("run", f"reward_model.reward_manager={manager}")
    assert asked == [processes] and run.results() == plain.results()


def test_a_function_that_raises_now_and_then_is_counted_and_the_run_goes_on(
    stage: Stage, own: partial[list[str]]
) -> None:
    run = dumped(stage, "run", *own("sometimes_raising"))
    for step, line in enumerate(run.lines(), start=1):
        assert line["reward/errors"] == sum(sum(map(ord, text)) % 3 == 0 for text, _ in scores(run, step))
    assert sum(line["reward/errors"] for line in run.lines()) > 0


ALL = [
    ("raising", [], r"all 8 calls of the reward function failed.*ValueError: invalid literal.*mine\.py, line 26\)"),
    ("another_signature", [], r"all 8 .*unexpected keyword argument.*compute_score\(data_source=\.\.\., "),
    ("raising", ["trainer.val_before_train=True"], r"all 3 calls .*mine\.py, line 26\)"),
    ("in_training_alone", ["trainer.val_before_train=True"], r"all 3 calls .*ZeroDivisionError"),
    ("raising", ["algorithm.filter_groups.enable=True"], r"all 8 calls .*mine\.py, line 26\)"),
]


@pytest.mark.parametrize(("name", "more", "message"), ALL)
def test_a_function_that_always_raises_ends_the_run_with_the_line_at_fault(
    stage: Stage, own: partial[list[str]], name: str, more: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        stage.run_ppo("run", *own(name), *more)


def test_the_first_answers_of_a_validation_in_pieces_may_all_fail(stage: Stage) -> None:
    path: Path = stage.directory / "first.py"
    text = "made = []\ndef compute_score(**_):\n    made.append(1)\n    return 1 / (len(made) > 2)\n"
    path.write_text(text)
    more = ["trainer.val_only=True", "data.val_batch_size=1", f"{ROLLOUT}.val_kwargs.n=1"]
    run = stage.run_ppo("run", f"custom_reward_function.path={path}", *more)
    assert run.lines()[0]["val-core/arithmetic/reward/mean@1"] == pytest.approx(1 / 3)


def test_late_calls_alone_do_not_end_a_run_and_one_score_is_enough() -> None:
    late, failed = Reward(0.0, error="late", timeout=True), Reward(0.0, error="E: x (mine.py, line 3)")
    scoring, batch = Scoring(OverlongBuffer(), 8), random_batch(2, seed=0)
    for rewards in ([late, late], [failed, late], [failed, Reward(0.0)], [failed, Reward(None)]):
        scoring.add_scores(batch, rewards)
    with pytest.raises(UserError, match=r"all 2 .*E: x \(mine\.py, line 3\)"):
        scoring.add_scores(batch, [failed, failed])
    draws = iter([sampled([failed, failed]), sampled([Reward(0.0), Reward(1.0)])])
    with pytest.raises(UserError, match=r"all 2 .*mine\.py, line 3"):
        sample_informative(lambda: next(draws), FilterGroups(), scoring, prompts=1, n=2)
