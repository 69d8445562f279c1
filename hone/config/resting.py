"""Sections that rest while what they belong to is switched off: a key set in one is said to have nothing to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .presets import PRESETS
from .schema import PPOConfig
from .tree import Tree, get

MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Resting:
    """`keys` (a section, with a dot at its end, or a key) rest while `switch` is `off`."""

    switch: str
    off: bool | None
    keys: tuple[str, ...]

    def holds(self, key: str) -> bool:
        return key.startswith(self.keys) and key != self.switch


MODEL_REWARDS = ("micro_batch_size_per_gpu", "max_length", "use_dynamic_bsz", "forward_max_token_len_per_gpu")
RESTING = (
    Resting(f"{MODEL}.use_fused_kernels", False, (f"{MODEL}.fused_kernel_options.",)),
    Resting("data.custom_cls.path", None, ("data.custom_cls.",)),
    Resting(f"{ROLLOUT}.multi_turn.enable", False, (f"{ROLLOUT}.multi_turn.",)),
    Resting(f"{ROLLOUT}.agent.custom_async_server.path", None, (f"{ROLLOUT}.agent.custom_async_server.",)),
    Resting(
        "reward_model.enable",
        False,
        ("reward_model.model.", "reward_model.strategy", *(f"reward_model.{name}" for name in MODEL_REWARDS)),
    ),
    Resting("reward_model.sandbox_fusion.url", None, ("reward_model.sandbox_fusion.",)),
)


def resting_notices(config: PPOConfig, user_keys: Collection[str]) -> Iterator[str]:
    tree, defaults = config.model_dump(by_alias=True), PRESETS["ppo_trainer"].tree()
    for rest in RESTING:
        keys = sorted(key for key in user_keys if rest.holds(key) and not _is_default(key, tree, defaults))
        if keys and get(tree, rest.switch) is rest.off:
            switch = f"{rest.switch}={'null' if rest.off is None else rest.off}"
            yield f"{switch}, so nothing is left to do for " + ", ".join(keys)


def _is_default(key: str, tree: Tree, defaults: Tree) -> bool:
    """Also where the default is to follow another key. A file that a run wrote sets every key, most of them so."""
    default = get(defaults, key, None)
    followed = get(tree, default[2:-1], None) if isinstance(default, str) and default.startswith("${") else default
    return get(tree, key, None) == followed
