"""`hone config`: show, check, diff, explain, docs."""

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


def test_show_says_where_a_value_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "ppo", "trainer.seed=3", "--changed") == 0
    assert capsys.readouterr().out == "trainer:\n  seed: 3  # command line; default 0\n"


def test_diff_prints_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("optim: {lr: 1e-6}\n")
    assert run("diff", str(tmp_path / "mine.yaml"), "sft", "data.seed=1") == 0
    assert capsys.readouterr().out == "data.seed: 42 -> 1\noptim.lr: 1e-06 -> 1e-05\n"
    assert run("diff", "ppo", "ppo") == 0
    assert capsys.readouterr().out == "no key differs\n"
    assert run("diff", "ppo", "sft") == 2
    assert "two of the same command" in capsys.readouterr().err


def test_docs_writes_the_reference_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("docs", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"{tmp_path}/config.md\n{tmp_path}/config.zh.md\n"
    assert "`optim.lr`" in (tmp_path / "config.zh.md").read_text(encoding="utf-8")


def test_check_reports_problems_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "sft", "data.train_files=/no/such.parquet", "optim.lr=-1") == 2
    text = capsys.readouterr().err
    assert "data.train_files" in text and "optim.lr" in text


def test_check_reports_what_the_users_files_lack_with_everything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    own = f"custom_reward_function.path={tmp_path}/broken.py"
    assert run("check", "eval", "data.path=/no/such.parquet", "data.respons_key=x", own) == 2
    text = capsys.readouterr().err
    assert text.startswith("hone: 3 problems") and "SyntaxError" in text
    assert "did you mean data.response_key?" in text and "/no/such.parquet" in text


def test_a_file_of_the_users_that_is_missing_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "eval", "data.path=/no.parquet", "custom_reward_function.path=/no/such.py") == 2
    assert capsys.readouterr().err.startswith("hone: 2 problems")


def test_check_says_that_a_configuration_can_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = '{"responses": ["5"], "data_source": "arithmetic", "reward_model": {"ground_truth": "5"}}'
    (tmp_path / "rows.jsonl").write_text(row)
    assert run("check", "eval", f"data.path={tmp_path}/rows.jsonl") == 0
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
