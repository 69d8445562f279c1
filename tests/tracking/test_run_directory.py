"""What a run leaves on disk next to its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from hone.tracking.run_directory import dump_trajectories, write_config


def test_versions_stand_in_comments_above_the_configuration(tmp_path: Path) -> None:
    write_config(tmp_path / "run", "a: {b: 1}\n")
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert yaml.safe_load(text) == {"a": {"b": 1}}
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0].startswith("# python 3.") and any(line.startswith("# torch ") for line in comments)


def test_trajectories_are_lines_with_their_step_in_any_script(tmp_path: Path) -> None:
    rows = [{"input": "问", "output": "a\nb", "gts": {"x": 1}, "score": None}, {"input": "", "score": 0.5}]
    dump_trajectories(tmp_path / "rollouts", 3, rows)
    text = (tmp_path / "rollouts" / "3.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [{**row, "step": 3} for row in rows]
    assert "问" in text
