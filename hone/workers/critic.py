"""The value model in one process: values and updates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hone.batch import Batch
from hone.config.schema.ppo import PPOConfig
from hone.models.load import load_tokenizer
from hone.training.checkpoint import load_engine, save_engine
from hone.workers.build import critic_engine
from hone.workers.objectives import ValueObjective
from hone.workers.settings import RunSettings


class CriticWorker:
    def __init__(self, config: PPOConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        self.engine = critic_engine(config, run)
        self.objective = ValueObjective(config.critic.cliprange_value)
        model = config.critic.model
        self.tokenizer = load_tokenizer(model.tokenizer_path or model.path, trust_remote_code=model.trust_remote_code)

    def compute_values(self, batch: Batch) -> Batch:
        """Column values: V of the state before each trainable token."""
        return self.engine.forward(batch, {"values"})

    def update(self, batch: Batch, training_step: int) -> dict[str, float]:
        """One optimiser step on a mini-batch with a `loss_weight` column; metrics without prefix."""
        return self.engine.step(batch, self.objective, training_step=training_step, mask="loss_mask")

    def save(self, path: Path, contents: Collection[str]) -> None:
        save_engine(self.engine, path, contents, self.tokenizer)

    def load(self, path: Path, contents: Collection[str]) -> None:
        load_engine(self.engine, path, contents)
