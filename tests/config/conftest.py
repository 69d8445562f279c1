"""A folder with everything that a configuration names, and the overrides that point a run at it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def runnable(tmp_path: Path) -> dict[str, list[str]]:
    """For each command, overrides with which this build can run it."""
    rows, model = tmp_path / "rows.parquet", tmp_path / "model"
    rows.touch()
    model.mkdir()
    ppo = [
        f"data.train_files={rows}",
        f"data.val_files={rows}",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.rollout.name=hf",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[console]",
    ]
    return {
        "ppo": ppo,
        "sft": [f"data.train_files={rows}", f"model.partial_pretrain={model}"],
        "generate": [f"data.path={rows}", f"model.path={model}"],
        "eval": [f"data.path={rows}"],
    }
