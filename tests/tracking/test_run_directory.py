"""What a run leaves on disk next to its checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import yaml

from hone.tracking.run_directory import dump_trajectories, write_config


def test_versions_stand_in_comments_above_the_configuration(tmp_path: Path) -> None:
    write_config(tmp_path / "run", "a: {b: 1}\n")
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert yaml.safe_load(text) == {"a": {"b": 1}}
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0].startswith("# python 3.") and any(line.startswith("# torch ") for line in comments)


def test_a_resume_with_other_values_names_them_and_keeps_the_file_that_made_the_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_config(tmp_path, "a: {b: 1, c: [1, 2], gone: x}\n")
    first = (tmp_path / "config.yaml").read_text()
    write_config(tmp_path, "a: {b: 2, c: [1, 2], new: y}\n", done=6)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "since step 6" in record.getMessage()
    named = record.getMessage().splitlines()[1:]
    assert named == ["  a.b: 1 -> 2", "  a.gone: 'x' -> (no such key)", "  a.new: (no such key) -> 'y'"]
    write_config(tmp_path, "a: {b: 3}\n", done=6)
    assert (tmp_path / "config.before_step_7.yaml").read_text() == first
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"a": {"b": 3}}


def test_a_resume_with_the_same_values_and_a_run_begun_anew_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_config(tmp_path, "a: {b: 1}\n")
    write_config(tmp_path, "a:\n  b: 1\n", done=6)
    write_config(tmp_path, "a: {b: 2}\n")
    assert not caplog.records and [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_of_many_changes_twenty_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_config(tmp_path, yaml.safe_dump({f"k{i}": 0 for i in range(25)}))
    write_config(tmp_path, yaml.safe_dump({f"k{i}": 1 for i in range(25)}), done=1)
    lines = caplog.text.splitlines()
    assert sum(": 0 -> 1" in line for line in lines) == 20 and lines[-1] == "  and 5 more"


def test_a_configuration_that_cannot_be_read_is_kept_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.yaml").write_text("a: [1,")
    write_config(tmp_path, "a: 1\n", done=2)
    assert "cannot be read" in caplog.text
    assert (tmp_path / "config.before_step_3.yaml").read_text() == "a: [1,"


def test_what_json_has_no_word_for_is_null(tmp_path: Path) -> None:
    dump_trajectories(tmp_path, 1, [{"score": float("nan"), "gts": {1: [float("inf")]}, "kind": object}])
    text = (tmp_path / "1.jsonl").read_text()
    expected = {"score": None, "gts": {"1": [None]}, "kind": "<class 'object'>", "step": 1}
    assert json.loads(text, parse_constant=pytest.fail) == expected


def test_trajectories_are_lines_with_their_step_in_any_script(tmp_path: Path) -> None:
    rows = [{"input": "问", "output": "a\nb", "gts": {"x": 1}, "score": None}, {"input": "", "score": 0.5}]
    dump_trajectories(tmp_path / "rollouts", 3, rows)
    text = (tmp_path / "rollouts" / "3.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [{**row, "step": 3} for row in rows]
    assert "问" in text
