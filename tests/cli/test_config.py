"""`hone config`: show, check, explain."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hone.cli.main import main


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["config", *argv])
    return int(caught.value.code or 0)


def test_show_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "ppo", "data.max_prompt_length=64", "trainer.seed=3") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["actor_rollout_ref"]["rollout"]["prompt_length"] == 64
    assert shown["trainer"]["seed"] == 3


def test_show_takes_hydras_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("rollout: {temperature: 0.5}\n")
    assert run("show", "generate", "-cp", str(tmp_path), "--config-name", "mine") == 0
    assert yaml.safe_load(capsys.readouterr().out)["rollout"]["temperature"] == 0.5


def test_check_reports_problems_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "sft", "data.train_files=/no/such.parquet", "optim.lr=-1") == 2
    text = capsys.readouterr().err
    assert "data.train_files" in text and "optim.lr" in text


def test_check_says_that_a_configuration_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.parquet").touch()
    assert run("check", "eval", f"data.path={tmp_path}/rows.parquet") == 0
    assert capsys.readouterr().out == "The configuration of `hone eval` can run.\n"


def test_explain_gives_meaning_type_choices_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "ppo", "algorithm.kl_ctrl.type") == 0
    text = capsys.readouterr().out
    assert "one of fixed, adaptive" in text and "default: fixed" in text and "target_kl" in text


def test_explain_lists_a_section_or_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "ppo", "algorithm.kl_ctrl") == 0
    assert capsys.readouterr().out.count("algorithm.kl_ctrl.") == 4
    assert run("explain", "sft") == 0
    assert "optim.lr=1e-05" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "hint"), [(["explain", "ppo", "algorithm.gama"], "algorithm.gamma"), (["show", "pppo"], "ppo")]
)
def test_a_mistyped_name_is_answered_with_the_nearest(
    argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == 2
    assert f"did you mean {hint}?" in capsys.readouterr().err
