"""A place for whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.runs import Stage


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)
