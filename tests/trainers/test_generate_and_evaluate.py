"""`hone generate` writes answers beside the rows they belong to, and `hone eval` scores them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hone.cluster import LocalExecutor
from hone.config import load
from hone.data.files import read_rows
from hone.errors import UserError
from hone.trainers import generate as module
from hone.trainers.evaluate import evaluate
from hone.trainers.generate import generate
from hone.workers import rollout as worker
from tests.shows import shows
from tests.trainers.runs import Stage


def generated(stage: Stage, name: str, *more: str) -> list[dict[str, Any]]:
    argv = [
        f"model.path={stage.model}",
        f"data.path={stage.data}/test.parquet",
        f"data.output_path={stage.directory}/{name}",
        "data.max_samples=6",
        "data.n_samples=2",
        "rollout.response_length=8",
        "rollout.dtype=float32",
        "trainer.device=cpu",
        *more,
    ]
    generate(load("generate", argv), LocalExecutor())
    rows = read_rows(stage.directory / name)
    return [rows[i] for i in range(len(rows))]


def evaluated(stage: Stage, path: Path, *more: str) -> dict[str, float]:
    return evaluate(load("eval", [f"data.path={path}", *more]))


def answers(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [row["responses"] for row in rows]


@shows("data.n_samples", "data.output_path", command="generate")
def test_every_row_keeps_its_columns_and_gets_its_answers(stage: Stage) -> None:
    rows, source = generated(stage, "out.parquet"), read_rows(stage.data / "test.parquet")
    assert len(rows) == 6
    for index, row in enumerate(rows):
        assert {key: row[key] for key in source[index]} == source[index]
        assert len(row["responses"]) == 2 and row["responses"][0] != row["responses"][1]
    figures = json.loads((stage.directory / "out.stats.json").read_text())
    assert figures["responses"] == 12 and 12 <= figures["tokens"] <= 96 and figures["tokens_per_second"] > 0


@pytest.mark.parametrize(
    "more", [["data.batch_size=4"], ["rollout.max_num_seqs=3"], ["rollout.max_num_batched_tokens=50"]]
)
def test_the_same_seed_gives_the_same_answers_however_they_are_batched(stage: Stage, more: list[str]) -> None:
    assert answers(generated(stage, "a.parquet")) == answers(generated(stage, "b.jsonl", *more))


@shows(
    *(f"rollout.{name}" for name in ("temperature", "do_sample", "top_k", "top_p", "ignore_eos")), command="generate"
)
@pytest.mark.parametrize(
    "change",
    ["trainer.seed=1", "rollout.temperature=0", "rollout.do_sample=False", "rollout.top_k=1", "rollout.top_p=0.1",
     "rollout.ignore_eos=True", "rollout.response_length=4"],
)  # fmt: skip
def test_an_option_changes_the_answers(stage: Stage, change: str) -> None:
    # At a low temperature a random model's end token comes early only by chance: ask for many tokens.
    length = "rollout.response_length=100"
    assert answers(generated(stage, "a.jsonl", length)) != answers(generated(stage, "b.jsonl", length, change))


def test_greedy_answers_of_a_prompt_are_the_same(stage: Stage) -> None:
    assert all(first == second for first, second in answers(generated(stage, "a.jsonl", "rollout.temperature=0")))


def test_json_lines_and_parquet_hold_the_same(stage: Stage) -> None:
    assert generated(stage, "a.jsonl") == generated(stage, "b.parquet")


@shows("custom_reward_function.path", "custom_reward_function.name", "output_path", "data.path", command="eval")
def test_generated_answers_are_scored_by_the_same_function_as_in_training(stage: Stage) -> None:
    rows = generated(stage, "out.parquet")
    output = stage.directory / "metrics" / "scores.json"
    function = (f"custom_reward_function.path={stage.reward}", "custom_reward_function.name=with_extras")
    metrics = evaluated(stage, stage.directory / "out.parquet", f"output_path={output}", *function)
    scores = [[sum(map(ord, text)) % 7 / 7 for text in texts] for texts in answers(rows)]
    accuracy = [[float(score > 0.5) for score in prompt] for prompt in scores]
    name = "val-core/arithmetic/acc"
    assert metrics[f"{name}/mean@2"] == pytest.approx(sum(map(sum, accuracy)) / 12)
    assert metrics[f"{name}/best@2/mean"] == pytest.approx(sum(map(max, accuracy)) / 6)
    assert metrics["val-aux/arithmetic/reward/mean@2"] == pytest.approx(sum(map(sum, scores)) / 12)
    assert json.loads(output.read_text()) == metrics
    assert metrics["reward/errors"] == 0.0


def test_when_every_call_raised_there_is_nothing_to_report(stage: Stage) -> None:
    generated(stage, "out.parquet")
    function = [f"custom_reward_function.path={stage.directory}/raises.py"]
    (stage.directory / "raises.py").write_text(
        "def compute_score(*_, **__):\n    raise RuntimeError('no score today')\n"
    )
    with pytest.raises(UserError, match="no score today"):
        evaluated(stage, stage.directory / "out.parquet", *function)


def test_it_is_said_when_nothing_was_scored(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    path, own = stage.directory / "answers.jsonl", stage.directory / "silent.py"
    row = {"data_source": "arithmetic", "reward_model": {"ground_truth": "5"}, "responses": ["#### 5", "5"]}
    path.write_text(json.dumps(row))
    own.write_text("def compute_score(data_source, **_):\n    return None\n")
    assert evaluated(stage, path, f"custom_reward_function.path={own}")["val-aux/arithmetic/unscored"] == 2
    assert "nothing was scored: the reward function returned None for all 2 responses" in caplog.text
    caplog.clear()
    evaluated(stage, path)
    assert "nothing was scored" not in caplog.text


def test_right_answers_score_one_and_wrong_ones_zero(stage: Stage) -> None:
    rows = [
        {"data_source": "arithmetic", "reward_model": {"ground_truth": "12"}, "responses": ["so\n#### 12", "#### 13"]},
        {"data_source": "arithmetic", "reward_model": {"ground_truth": "5"}, "responses": ["#### 5", "#### 5.0"]},
    ]
    path = stage.directory / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert evaluated(stage, path)["val-core/arithmetic/reward/mean@2"] == 0.75


@shows("data.response_key", "data.data_source_key", "data.reward_model_key", command="eval")
def test_other_columns_can_be_named(stage: Stage) -> None:
    path = stage.directory / "answers.jsonl"
    path.write_text(json.dumps({"from": "arithmetic", "truth": {"ground_truth": "5"}, "said": ["#### 5"]}))
    keys = ("data.response_key=said", "data.data_source_key=from", "data.reward_model_key=truth")
    assert evaluated(stage, path, *keys)["val-core/arithmetic/reward/mean@1"] == 1.0


@pytest.mark.parametrize("change", [{"data_source": None}, {"responses": None}, {"reward_model": "5"}])
@pytest.mark.parametrize("absent", [False, True])
def test_a_row_with_a_mistake_is_named_before_any_row_is_scored(
    stage: Stage, change: dict[str, Any], absent: bool
) -> None:
    right = {"data_source": "arithmetic", "reward_model": {"ground_truth": "5"}, "responses": ["#### 5"]}
    row = {name: value for name, value in {**right, **change}.items() if value is not None or not absent}
    path = stage.directory / "answers.jsonl"
    path.write_text(json.dumps(right) + "\n" + json.dumps(row))
    scored = stage.directory / "scored.py"
    scored.write_text("def compute_score(*_, **__):\n    raise SystemExit('scored too early')\n")
    (name,) = change
    with pytest.raises(UserError, match=rf"answers\.jsonl, row 1.*column '{name}'"):
        evaluated(stage, path, f"custom_reward_function.path={scored}")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails now fails before a model is loaded."""

    def load_nothing(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded before the mistake is found")

    monkeypatch.setattr(worker, "load_causal_lm", load_nothing)


def json_lines(stage: Stage, *rows: dict[str, Any]) -> str:
    path = stage.directory / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def test_a_mistake_is_found_before_a_model_is_loaded(stage: Stage, no_model: None) -> None:
    right = {"prompt": "Tom has 5 cups."}
    short = ["rollout.max_model_len=600", "rollout.response_length=500"]
    empty = [json_lines(stage, {**right, "extra_info": {}})]
    mistakes = {
        r"data\.output_path=.*out\.csv": ("out.csv", []),
        r"prompts\.jsonl.*column 'extra_info'.*\.jsonl": ("out.parquet", empty),
        r"rollout\.max_model_len=600.*rollout\.prompt_length": ("out.jsonl", short),
    }
    for message, (name, more) in mistakes.items():
        with pytest.raises(UserError, match=message):
            generated(stage, name, *more)
        assert not (stage.directory / name).exists()


def test_a_long_prompt_is_found_before_a_model_is_loaded_wherever_it_stands(stage: Stage, no_model: None) -> None:
    rows = json_lines(stage, *({"prompt": "cups " * count} for count in (2, 3, 2, 90)))
    with pytest.raises(
        UserError, match=r"row 3, column 'prompt'.*rollout\.prompt_length=50\. Raise rollout\.prompt_le"
    ):
        generated(stage, "out.jsonl", rows, "rollout.prompt_length=50", "data.batch_size=1")


def test_columns_that_the_first_row_lacks_are_written(stage: Stage) -> None:
    rows = json_lines(stage, {"prompt": "cups"}, {"prompt": "pens", "late": "x"})
    assert [row["late"] for row in generated(stage, "out.parquet", rows)] == [None, "x"]


def test_responses_outlive_a_run_that_dies(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generated(stage, "whole.jsonl")

    def full_disk(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(module.ResponseFile, "write", full_disk)
    with pytest.raises(OSError, match="no space"):
        generated(stage, "out.parquet")
    left = read_rows(stage.directory / "out.partial.jsonl")
    assert sorted(map(str, answers(list(left)))) == sorted(map(str, answers(whole)))
    assert not (stage.directory / "out.parquet").exists()


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_the_auto_dtype_is_the_one_that_the_model_was_saved_in(stage: Stage, stored: str) -> None:
    model = stage.directory / "model"
    shutil.copytree(stage.model, model)
    AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, stored)).save_pretrained(model)
    options = (f"model.path={model}", "rollout.response_length=20")
    named, auto = (generated(stage, "out.jsonl", *options, f"rollout.dtype={dtype}") for dtype in (stored, "auto"))
    assert answers(named) == answers(auto)
