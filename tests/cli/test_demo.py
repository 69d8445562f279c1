"""`hone demo`: every stage is one of hone's own commands, and a finished one is not run again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.cli import demo as demo_module
from hone.cli.demo import SHORT
from hone.cli.demo_stages import Algorithm, Engine, Stage, Task, stages
from hone.cli.main import main
from hone.config import engines as engines_module
from hone.config import load


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["demo", *argv])
        raise SystemExit(0)
    return int(caught.value.code or 0)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM as far as a configuration looks: that it can be found."""
    monkeypatch.setattr(engines_module, "find_spec", lambda name: name)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("engine", list(Engine))
def test_every_stage_is_a_command_whose_configuration_can_run(
    algorithm: Algorithm, ranks: int, engine: Engine, tmp_path: Path
) -> None:
    models = [f"sft/global_step_{SHORT.sft_steps}/model", f"rl/global_step_{SHORT.rl_steps}/actor"]
    for folder in ("model", *(f"{model}/huggingface" for model in models)):  # what earlier stages leave
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data").mkdir()
    for file in ("data/train.parquet", "data/test.parquet", "responses_before.parquet", "responses_after.parquet"):
        (tmp_path / file).touch()
    names = []
    for stage in stages(algorithm, 3, ranks, SHORT, tmp_path, engine=engine):
        names.append(stage.name)
        command, *argv = stage.command
        if command in ("ppo", "sft", "generate", "eval"):
            config = load(command, argv).config
            assert command != "ppo" or config.ranks == ranks
            assert command not in ("ppo", "generate") or engine_of(config) == engine.value
    assert names == [
        "data", "model", "sft", "generate before", "eval before", "rl", "generate after", "eval after"
    ]  # fmt: skip


def engine_of(config) -> str:
    return str(getattr(config, "actor_rollout_ref", config).rollout.name)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("engine", list(Engine))
def test_every_stage_of_the_calculator_is_a_command_whose_configuration_can_run(
    algorithm: Algorithm, engine: Engine, tmp_path: Path
) -> None:
    for folder in ("model", f"sft/global_step_{SHORT.sft_steps}/model/huggingface", "data"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("data/train.parquet", "data/test.parquet", "data/tools.yaml"):
        (tmp_path / file).touch()
    planned = list(stages(algorithm, 3, 1, SHORT, tmp_path, Task.calculator, engine))
    assert [stage.name for stage in planned] == ["data", "model", "sft", "rl"]
    for stage in planned[2:]:
        config = load(stage.command[0], stage.command[1:]).config
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "tools"
    assert config.trains_critic == (algorithm is Algorithm.ppo) and engine_of(config) == engine.value


def test_an_engine_that_is_not_installed_is_missed_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "find_spec", lambda name: None)
    assert run("--engine", "vllm", "--output", str(tmp_path / "demo")) == 2
    assert "vllm is not installed" in capfd.readouterr().err and not (tmp_path / "demo").exists()


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo of one quick stage, whose command writes out.json."""
    out = tmp_path / "demo" / "out.json"

    def quick(algorithm: Algorithm, seed: int, *_: object) -> Iterator[Stage]:
        yield Stage("show", ["data", "arithmetic", "--output", str(out.parent), "--train-size", "4", "--test-size", "2",
                             "--seed", str(seed)], out.parent / "test.parquet")  # fmt: skip

    monkeypatch.setattr(demo_module, "stages", quick)
    monkeypatch.setattr(demo_module, "_accuracy", lambda path: 0.5)
    return out.parent


def test_a_finished_stage_is_kept_and_one_whose_output_is_gone_runs_again(
    copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("--output", str(copied)) == 0
    assert run("--output", str(copied)) == 0
    assert capfd.readouterr().out.count("already done") == 1
    (copied / "test.parquet").unlink()
    assert run("--output", str(copied)) == 0
    assert capfd.readouterr().out.count("already done") == 0
    assert (copied / "test.parquet").is_file()


def test_a_directory_of_other_commands_is_refused(copied: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--output", str(copied)) == 0
    before = (copied / "test.parquet").read_bytes()
    assert run("--output", str(copied), "--seed", "1") == 2
    assert "holds a demo of other commands" in capfd.readouterr().err
    assert (copied / "test.parquet").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_short_demo_measures_before_and_after_and_is_kept(
    algorithm: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--short", "--algorithm", algorithm, "--output", str(tmp_path / "demo")]
    assert run(*argv) == 0
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert 0 <= summary["accuracy_before"] <= 1 and 0 <= summary["accuracy_after"] <= 1
    assert len(summary["stages"]) == 8 and all(stage["seconds"] > 0 for stage in summary["stages"])
    steps = (tmp_path / "demo" / "rl" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(steps[-1])["step"] == SHORT.rl_steps

    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    capfd.readouterr()
    assert run(*argv) == 0
    assert capfd.readouterr().out.count("already done") == 8
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    assert {path.name for path in written if written[path] != again[path]} == {"summary.json"}
    assert json.loads((tmp_path / "demo" / "summary.json").read_text()) == summary


@pytest.mark.slow
def test_a_short_demo_of_the_calculator_calls_it_and_reads_its_answers(tmp_path: Path) -> None:
    assert run("--short", "--task", "calculator", "--output", str(tmp_path / "demo")) == 0
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert 0 <= summary["accuracy_before"] <= 1 and 0 <= summary["accuracy_after"] <= 1
    assert [stage["name"] for stage in summary["stages"]] == ["data", "model", "sft", "rl"]
    rollouts = [line for path in (tmp_path / "demo" / "rl" / "rollouts").glob("*.jsonl") for line in path.open()]
    assert len(rollouts) == 2 * 32 * 8


@pytest.mark.slow
def test_a_stage_that_fails_ends_the_demo_with_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demo = tmp_path / "demo"
    demo.mkdir()
    (demo / "data").write_text("a file where a folder should be")
    assert run("--short", "--output", str(demo)) == 2
    message = capfd.readouterr().err
    assert "the stage 'data' failed" in message and "Traceback" not in message
