"""`hone sft` and `hone generate` over several Ray ranks give the numbers and the rows of one process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.cli.processes import processes
from hone.cluster import LocalExecutor
from hone.config import load
from hone.data.files import read_rows
from hone.data.responses import Answers
from hone.errors import UserError
from hone.trainers.generate import generate
from hone.trainers.sft import SFTTrainer
from tests.trainers.runs import Run, Stage, difference

ray = pytest.importorskip("ray")
from hone.cluster.ray import RayExecutor  # noqa: E402

pytestmark = pytest.mark.slow
STEPS = ["trainer.total_training_steps=5", "trainer.save_freq=5", "trainer.test_freq=5", "data.val_max_samples=5"]


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=300_000_000)
    yield
    ray.shutdown()


def tuned(stage: Stage, name: str, ranks: int, *more: str) -> Run:
    loaded = load("sft", stage.sft(name, "optim.eps=1e-4", *STEPS, f"trainer.n_gpus_per_node={ranks}", *more))
    with processes(loaded.config) as executor:
        assert isinstance(executor, LocalExecutor) == (ranks == 1)
        SFTTrainer(loaded, executor).fit()
    return Run(stage.directory / name)


def assert_same(together: Run, alone: Run) -> None:
    assert difference(alone.weights(5, "model"), together.weights(5, "model")) < 1e-5
    for ours, theirs in zip(together.results(), alone.results(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize(
    ("ranks", "more"), [(2, ["model.use_remove_padding=True"]), (2, ["model.strategy=fsdp"]), (4, [])]
)
def test_fine_tuning_measures_and_learns_what_one_process_does(stage: Stage, ranks: int, more: list[str]) -> None:
    assert_same(tuned(stage, "together", ranks, *more), tuned(stage, "alone", 1))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 4)])
def test_a_fine_tuning_run_goes_on_with_another_number_of_ranks(stage: Stage, before: int, after: int) -> None:
    constant = "optim.lr_scheduler=constant"  # others know where the run ends
    first = ("trainer.total_training_steps=3", "trainer.save_freq=3", "trainer.test_freq=-1")
    tuned(stage, "run", before, constant, *first)
    assert_same(tuned(stage, "run", after, constant), tuned(stage, "alone", 1, constant))


def argv(stage: Stage, name: str, *more: str) -> list[str]:
    return [
        f"model.path={stage.model}",
        f"data.path={stage.data}/test.parquet",
        f"data.output_path={stage.directory}/{name}",
        "data.max_samples=7",
        "data.n_samples=2",
        "rollout.response_length=16",
        "rollout.dtype=float32",
        "trainer.device=cpu",
        *more,
    ]


def generated(stage: Stage, name: str, *more: str) -> list[dict[str, Any]]:
    loaded = load("generate", argv(stage, name, *more))
    with processes(loaded.config) as executor:
        generate(loaded, executor)
    return list(read_rows(stage.directory / name))


@pytest.mark.parametrize("sampling", ["rollout.temperature=0", "rollout.temperature=1"])
def test_rows_come_back_in_order_with_the_answers_of_one_process(stage: Stage, sampling: str) -> None:
    alone = generated(stage, "alone.parquet", sampling)
    assert len({str(row["responses"]) for row in alone}) > 4
    assert generated(stage, "two.parquet", sampling, "trainer.n_gpus_per_node=2") == alone
    more = ("trainer.n_gpus_per_node=4", "data.batch_size=3", "data.n_samples=1")  # some ranks get nothing at the end
    first = [{**row, "responses": row["responses"][:1]} for row in alone]
    assert generated(stage, "four.parquet", sampling, *more) == first


def test_responses_outlive_a_rank_that_dies(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    long = ("rollout.response_length=400", "rollout.ignore_eos=True", "rollout.max_num_seqs=2")
    loaded = load("generate", argv(stage, "out.jsonl", *long, "trainer.n_gpus_per_node=2"))
    start, add, found = RayExecutor.start, Answers.add, 0
    processes_of: list[int] = []

    def start_and_look(self: RayExecutor, roles: Any) -> Any:
        """While a rank generates it answers no other call."""
        groups = start(self, roles)
        processes_of.extend(process for _, process in ray.get([actor.place.remote() for actor in self.actors]))
        return groups

    def add_then_kill(self: Answers, *answer: Any) -> None:
        nonlocal found
        add(self, *answer)
        found += 1
        if found == 2:
            os.kill(processes_of[1], signal.SIGKILL)

    monkeypatch.setattr(RayExecutor, "start", start_and_look)
    monkeypatch.setattr(Answers, "add", add_then_kill)
    with processes(loaded.config) as executor, pytest.raises(UserError, match="rank 1 died"):
        generate(loaded, executor)
    left = [json.loads(line) for line in (stage.directory / "out.partial.jsonl").read_text().splitlines()]
    assert 2 <= sum(len(row["responses"]) for row in left) < 14
    assert not (stage.directory / "out.jsonl").exists()
