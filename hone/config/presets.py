"""The named starting points of a configuration, also known to Hydra under these names."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from .schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from .schema.base import Node, default_tree
from .validate import resolve


@dataclass(frozen=True)
class Preset:
    """A schema with its defaults, and the few keys that this preset sets differently."""

    command: str
    schema: type[Node]
    changes: dict[str, Any] = field(default_factory=dict)

    def tree(self) -> dict[str, Any]:
        """The default tree, of one's own; interpolations are left as text."""
        return copy.deepcopy(self._tree)

    def resolved(self) -> dict[str, Any]:
        """The default tree with interpolations replaced, for keys that are at fault."""
        return copy.deepcopy(self._resolved)

    @cached_property
    def _resolved(self) -> dict[str, Any]:
        return resolve(self._tree, {})[0]

    @cached_property
    def _tree(self) -> dict[str, Any]:
        config = OmegaConf.create(default_tree(self.schema))
        for key, value in self.changes.items():
            OmegaConf.update(config, key, value)
        tree: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
        return tree


PRESETS = {
    "ppo_trainer": Preset("ppo", PPOConfig),
    "ppo_megatron_trainer": Preset(
        "ppo",
        PPOConfig,
        {
            "actor_rollout_ref.actor.strategy": "megatron",
            "actor_rollout_ref.actor.optim.optimizer": "adam",
            "critic.optim.optimizer": "adam",
            "actor_rollout_ref.rollout.load_format": "dummy_megatron",
        },
    ),
    "sft_trainer": Preset("sft", SFTConfig),
    "generation": Preset("generate", GenerationConfig),
    "evaluation": Preset("eval", EvaluationConfig),
}
DEFAULT_PRESET = {"ppo": "ppo_trainer", "sft": "sft_trainer", "generate": "generation", "eval": "evaluation"}


def register_with_hydra() -> None:
    """Lets a user's YAML name a preset in its defaults list."""
    store = ConfigStore.instance()
    for name, preset in PRESETS.items():
        store.store(name=name, node=preset.tree())
