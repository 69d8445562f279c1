"""DAPO's dynamic sampling: groups that are all alike are replaced by the prompts that come next."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future
from typing import Any

import pytest

from hone.agents import Trajectory
from hone.config.schema.algorithm import FilterGroups
from hone.config.schema.reward import OverlongBuffer
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rewards import Reward
from hone.trainers.dynamic_sampling import sample_informative
from hone.trainers.sampling import Sampled
from hone.trainers.scoring import Scoring
from tests.shows import shows
from tests.trainers.runs import ROLLOUT, Stage, same_weights

GROUPS = "algorithm.filter_groups"
FILTER = [f"{GROUPS}.enable=True", f"{GROUPS}.max_num_gen_batches=0"]
# Half of the answers get 1, so that about half of the groups of two are alike.
EVEN = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    score = float(sum(map(ord, solution_str)) % 2)
    return {"score": score, "acc": score, "same": 1.0}


def always(data_source, solution_str, ground_truth, extra_info):
    return 1.0
"""


def sampled(*groups: list[Reward], start: int = 0, lengths: tuple[int, ...] = ()) -> Sampled:
    """One prompt per group, named by its place in the run."""
    found = Sampled.none()
    for i, group in enumerate(groups):
        for k, reward in enumerate(group):
            future: Future[Reward] = Future()
            future.set_result(reward)
            tokens = lengths[k] if lengths else 1
            trajectory = Trajectory([1], [2] * tokens, [1] * tokens, [0.0] * tokens, [0] * tokens, "stop")
            sample = Sample(start + i, [1], [], "", "", {}, None, str(start + i))
            found = found + Sampled([sample], [trajectory], [future])
    return found


def rewards(*scores: float | None, **extras: float) -> list[Reward]:
    return [Reward(score, dict(extras)) for score in scores]


def test_prompts_that_are_never_scored_end_the_run_and_not_never() -> None:
    with pytest.raises(UserError, match="3 times in a row"):
        collect(*[sampled(rewards(None, None)) for _ in range(4)], prompts=1, max_num_gen_batches=0)


def collect(*batches: Sampled, prompts: int, buffer: OverlongBuffer | None = None, **groups: Any) -> tuple[Any, Any]:
    draws = iter(batches)
    scoring = Scoring(buffer or OverlongBuffer(), 8)
    chosen, metrics = sample_informative(
        lambda: next(draws),
        FilterGroups(**groups),
        scoring,
        prompts=prompts,
        n=2,  # fmt: skip
    )
    return [s.uid for s in chosen.samples[::2]], metrics["train/num_gen_batches"]


def test_groups_that_are_all_alike_make_room_for_the_next_prompts_and_what_is_too_much_is_left() -> None:
    first = sampled(rewards(1, 1), rewards(0, 1), rewards(0, 0))
    second = sampled(rewards(1, 0), rewards(None, 1), rewards(0, 1), start=3)
    assert collect(first, second, prompts=2) == (["1", "3"], 2)
    assert collect(first, second, prompts=3) == (["1", "3", "5"], 2)
    assert collect(first, second, prompts=1) == (["1"], 1)


@shows(f"{GROUPS}.metric")
def test_the_metric_is_the_score_or_what_the_reward_function_says_beside_it() -> None:
    alike = [Reward(1.0, {"acc": 0.0}), Reward(1.0, {"acc": 1.0})]
    batch = sampled(alike, [Reward(0.0, {"acc": 1.0}), Reward(1.0, {"acc": 1.0})])
    assert collect(batch, prompts=1, metric="score")[0] == ["1"]
    assert collect(batch, prompts=1, metric="acc")[0] == ["0"]
    penalised = sampled(rewards(1, 1), lengths=(4, 8))
    buffer = OverlongBuffer(enable=True, len=4, penalty_factor=1.0)
    assert collect(penalised, prompts=1, buffer=buffer, metric="seq_reward")[0] == ["0"]
    with pytest.raises(UserError, match=r"filter_groups\.metric=accuracy.*score, seq_reward, seq_final_reward, acc"):
        collect(batch, prompts=1, metric="accuracy")


@shows(f"{GROUPS}.max_num_gen_batches")
def test_a_bound_on_the_batches_ends_in_one_message() -> None:
    alike = sampled(rewards(1, 1), rewards(0, 1))
    with pytest.raises(UserError, match=r"max_num_gen_batches=2.* only 2 of data\.train_batch_size=3 groups"):
        collect(alike, alike, alike, prompts=3, max_num_gen_batches=2)
    assert collect(alike, alike, alike, prompts=3, max_num_gen_batches=3)[1] == 3


def test_failed_calls_of_groups_that_are_dropped_are_counted() -> None:
    failed = [Reward(0.0, error="no"), Reward(0.0, error="late", timeout=True)]
    scoring, draw = Scoring(OverlongBuffer(), 8), iter([sampled(failed), sampled(rewards(0, 1))])
    _, metrics = sample_informative(lambda: next(draw), FilterGroups(), scoring, prompts=1, n=2)
    assert (metrics["reward/errors"], metrics["reward/timeouts"], metrics["train/num_gen_batches"]) == (1.0, 1.0, 2.0)


@pytest.fixture
def even(stage: Stage) -> list[str]:
    path = stage.directory / "even.py"
    path.write_text(EVEN)
    return [*FILTER, f"custom_reward_function.path={path}"]


@shows(f"{GROUPS}.enable")
def test_a_step_trains_on_full_batches_of_groups_that_differ_in_the_order_of_the_data(
    stage: Stage, even: list[str]
) -> None:
    dump = f"trainer.rollout_data_dir={stage.directory}/dump"
    run = stage.run_ppo("run", *even, dump)
    seen = []
    for step, line in enumerate(run.lines(), start=1):
        answers = run.lines(f"../dump/{step}.jsonl")
        pairs = list(zip(answers[::2], answers[1::2]))
        assert len(pairs) == 4 and all(a["input"] == b["input"] and a["score"] != b["score"] for a, b in pairs)
        seen += [a["input"] for a, _ in pairs]
        assert line["critic/score/mean"] == 0.5
    assert sum(line["train/num_gen_batches"] for line in run.lines()) > 2
    position = json.loads((run.directory / "global_step_2" / "trainer_state.json").read_text())["position"]
    assert position == sum(line["train/num_gen_batches"] for line in run.lines())
    assert len(set(seen)) == len(seen)  # all of one epoch


def test_a_resumed_run_goes_on_with_the_same_prompts(stage: Stage, even: list[str]) -> None:
    more = [*even, "trainer.save_freq=1", "trainer.total_training_steps=3"]
    whole = stage.run_ppo("whole", *more)
    shutil.copytree(whole.directory, stage.directory / "again")
    for step in (2, 3):
        shutil.rmtree(stage.directory / "again" / f"global_step_{step}")
    (stage.directory / "again" / "latest_checkpointed_iteration.txt").write_text("1")
    again = stage.run_ppo("again", *more)
    assert again.results() == whole.results()
    assert same_weights(whole.weights(3), again.weights(3))


def test_a_reward_that_never_differs_ends_the_run(stage: Stage, even: list[str]) -> None:
    same = ["custom_reward_function.name=always", f"{GROUPS}.max_num_gen_batches=3"]
    with pytest.raises(UserError, match="only 0 of data.train_batch_size=4"):
        stage.run_ppo("run", *even, *same, f"{ROLLOUT}.n=3")
