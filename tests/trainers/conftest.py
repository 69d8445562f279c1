"""A place for whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.batch import Batch
from hone.workers.actor import ActorWorker
from tests.trainers.runs import Stage


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The mini-batches that the actor was trained on."""
    seen: list[Batch] = []
    update = ActorWorker.update
    monkeypatch.setattr(
        ActorWorker, "update", lambda self, batch, **more: (seen.append(batch), update(self, batch, **more))[1]
    )
    return seen
