"""Where metrics go: lines of JSON always, the other loggers where their package is there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hone.tracking.console import console, print_step
from hone.tracking.loggers import JsonLines, Tracker
from hone.tracking.strict_json import dumps


def tracker(directory: Path, *names: str, done: int = 0, last_line: dict[str, float] | None = None) -> Tracker:
    about = {"project": "p", "experiment": "e", "config": {"a": {"b": 1}}}
    return Tracker(list(names), directory=directory, done=done, last_line=last_line, **about)  # type: ignore[arg-type]


def steps(directory: Path) -> list[tuple[int, float]]:
    lines = [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["x"]) for line in lines]


def write(directory: Path, count: int) -> None:
    log = tracker(directory)
    for step in range(count + 1):
        log.log({"x": float(step)}, step)
    log.close()


def test_numbers_of_numpy_are_numbers() -> None:
    line = {"a": np.float32(0.5), "b": np.int64(3), "c": np.float32("nan"), "d": True}
    assert json.loads(dumps(line)) == {"a": 0.5, "b": 3, "c": None, "d": True}


def test_a_metric_that_is_not_finite_is_null(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl", first_step=0)
    lines.log({"reward/a/mean": float("nan"), "b": float("-inf"), "c": 1.5}, step=1)
    lines.close()
    (text,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    expected = {"step": 1, "reward/a/mean": None, "b": None, "c": 1.5}
    assert json.loads(text, parse_constant=pytest.fail) == expected


def test_every_step_is_a_line_that_is_on_disk_at_once(tmp_path: Path) -> None:
    log = tracker(tmp_path)
    log.log({"x": 0.1}, 1)
    assert steps(tmp_path) == [(1, 0.1)]
    log.log({"x": float("nan")}, 2)
    log.close()
    assert len(steps(tmp_path)) == 2


def test_a_resumed_run_drops_the_lines_that_it_writes_again(tmp_path: Path) -> None:
    write(tmp_path, 5)
    log = tracker(tmp_path, done=3, last_line={"x": 99.0})
    assert steps(tmp_path) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    log.log({"x": 4.5}, 4)
    log.close()
    assert steps(tmp_path)[-1] == (4, 4.5) and len(steps(tmp_path)) == 5


def test_a_new_run_begins_a_new_file(tmp_path: Path) -> None:
    write(tmp_path, 5)
    tracker(tmp_path).close()
    assert steps(tmp_path) == []


def test_half_a_line_of_a_killed_run_is_dropped(tmp_path: Path) -> None:
    write(tmp_path, 2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "x": 3.')
    log = tracker(tmp_path, done=2)
    log.log({"x": 3.0}, 3)
    log.close()
    assert steps(tmp_path) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]


def test_the_line_of_a_run_killed_between_checkpoint_and_line_is_taken_from_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 2)
    tracker(tmp_path, done=3, last_line={"x": 3.0}).close()
    assert steps(tmp_path) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]


def test_the_file_is_replaced_in_one_go(tmp_path: Path) -> None:
    write(tmp_path, 2)
    JsonLines(tmp_path / "metrics.jsonl", first_step=2).close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_step_is_one_line_on_the_console(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"critic/score/mean": 0.5, "val-core/math/acc/mean@1": 0.25, "actor/unknown": 3.0}
    with console.capture() as captured:
        print_step(metrics, 7)
    assert captured.get().split() == ["step", "7", "score", "0.5", "math/acc/mean@1", "0.25"]


def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = tracker(tmp_path, "tensorboard")
    log.log({"x": 1.5}, 1)
    log.log({"x": 2.5}, 2)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("x")] == [(1, 1.5), (2, 2.5)]


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    log = tracker(tmp_path, "wandb")
    log.log({"x": 1.5}, 1)
    log.close()
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
