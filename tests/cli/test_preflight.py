"""What is found after the configuration is right and before a model is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.error import HTTPError, URLError

import pytest

from hone.cli.main import main
from hone.config import engines
from hone.errors import UserError
from hone.models import hub
from hone.rollout.vllm.arguments import EngineArguments
from hone.user_code import run_file

LOSS = "actor_rollout_ref.actor.policy_loss.custom_loss"
AGENT = "actor_rollout_ref.rollout.agent"


@pytest.fixture
def right(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> list[str]:
    """`hone config check ppo` with overrides that it accepts."""
    (tmp_path / "mine.py").write_text("def mine():\n    pass\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    return [
        "config", "check", "ppo",
        f"data.train_files={arithmetic_dir}/train.parquet", "data.val_files=null",
        "data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        f"actor_rollout_ref.model.path={tiny_model_dir}", "actor_rollout_ref.rollout.name=hf",
        "trainer.n_gpus_per_node=1", "trainer.logger=[console]",
    ]  # fmt: skip


def message(argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    text = capfd.readouterr().err
    assert caught.value.code == 2 and "Traceback" not in text, text
    return text


@pytest.mark.parametrize("section", ["custom_reward_function", "algorithm.custom_estimator", LOSS])
def test_a_function_that_the_file_lacks_is_found_by_the_check(
    section: str, right: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = message([*right, f"{section}.path={tmp_path}/mine.py", f"{section}.name=other"], capfd)
    assert f"{section}.name=other" in text and "defines mine" in text


@pytest.mark.parametrize("section", ["custom_reward_function", "algorithm.custom_estimator", LOSS, AGENT])
def test_a_file_that_exits_is_named(
    section: str, right: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = f"{AGENT}.agent_loop_path" if section == AGENT else f"{section}.path"
    name = [] if section == AGENT else [f"{section}.name=mine"]
    text = message([*right, f"{key}={tmp_path}/exits.py", *name], capfd)
    assert key in text and "SystemExit" in text and "exits.py, line 2" in text


@pytest.mark.parametrize("file", [[], [f"{AGENT}.agent_loop_path={{d}}/mine.py"]])
def test_a_default_agent_that_nobody_registers_is_found_by_the_check(
    file: list[str], right: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = [text.format(d=tmp_path) for text in file]
    text = message([*right, *overrides, f"{AGENT}.default_agent_loop=magic"], capfd)
    assert "no agent 'magic'" in text and "single_turn" in text


def test_an_argument_that_vllm_does_not_have_is_found_by_the_check(
    right: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType("vllm.engine.arg_utils")
    stand_in.AsyncEngineArgs = EngineArguments  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.engine", "vllm.engine.arg_utils"):
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    rollout = "actor_rollout_ref.rollout"
    argv = [*right, f"{rollout}.name=vllm", f"{rollout}.tensor_model_parallel_size=1"]
    assert "no argument blok_size" in message([*argv, f"{rollout}.engine_kwargs.vllm={{blok_size:8}}"], capfd)
    with pytest.raises(SystemExit) as caught:
        main([*argv, f"{rollout}.engine_kwargs.vllm={{more:8}}"])
    assert caught.value.code == 0


def test_a_gpu_that_is_not_there_is_found_by_the_check(
    right: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hone.models.precision.has_gpu", lambda: False)
    assert "trainer.device=cuda, but torch sees no GPU" in message([*right, "trainer.device=cuda"], capfd)


def test_what_is_right_is_accepted(right: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(right)
    assert not caught.value.code


def test_an_exit_in_the_middle_of_a_run_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hone.cli.main.import_module", lambda name: SimpleNamespace(run=lambda argv: exit(0)))
    assert "called exit" in message(["ppo"], capfd)


def test_a_file_is_run_again_only_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("first = 1\n")
    assert run_file(path, key="k") is run_file(path, key="k")
    path.write_text("second = 2  # of another length\n")
    assert run_file(path, key="k").second == 2


def test_a_model_that_is_neither_here_nor_to_be_had_is_named_with_both_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise URLError("no route")

    monkeypatch.setattr(hub, "urlopen", silent)
    with pytest.raises(UserError, match=r"model\.path=nope: there is no such folder .* hub .*: no route"):
        hub.require_reachable("model.path", "nope")
    hub.require_reachable("model.path", str(tmp_path))


def test_a_hub_that_answers_is_left_to_say_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise HTTPError("url", 404, "not found", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(hub, "urlopen", refusing)
    hub.require_reachable("model.path", "nope")


def test_a_mistake_in_the_file_of_tools_is_found_by_the_check(
    right: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools.yaml").write_text("tools: [{function: 'mine.py:other'}]\n")
    section = "actor_rollout_ref.rollout.multi_turn"
    argv = [*right, f"{section}.enable=True", f"{section}.tool_config_path={tmp_path}/tools.yaml"]
    assert "tools[0].function=mine.py:other: mine.py defines no other" in message(argv, capfd)
