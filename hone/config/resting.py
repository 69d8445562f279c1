"""Sections that rest while what they belong to is switched off: a key set in one is said to have nothing to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .presets import DEFAULT_PRESET, PRESETS
from .schema import GenerationConfig, PPOConfig, SFTConfig
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
ALGORITHM, ACTOR = "algorithm", "actor_rollout_ref.actor"
PPO = (
    Resting(f"{ACTOR}.use_kl_loss", False, (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")),
    Resting(f"{ALGORITHM}.use_kl_in_reward", False, (f"{ALGORITHM}.kl_penalty", f"{ALGORITHM}.kl_ctrl.")),
    Resting(f"{ALGORITHM}.use_pf_ppo", False, (f"{ALGORITHM}.pf_ppo.",)),
    Resting(f"{ALGORITHM}.filter_groups.enable", False, (f"{ALGORITHM}.filter_groups.",)),
    Resting("reward_model.overlong_buffer.enable", False, ("reward_model.overlong_buffer.",)),
    Resting(f"{ROLLOUT}.use_fire_sampling", False, (f"{ROLLOUT}.fire_temperature",)),
    Resting(f"{MODEL}.use_fused_kernels", False, (f"{MODEL}.fused_kernel_options.",)),
    Resting("data.custom_cls.path", None, ("data.custom_cls.",)),
    Resting(f"{ROLLOUT}.multi_turn.enable", False, (f"{ROLLOUT}.multi_turn.",)),
    Resting(
        "reward_model.enable",
        False,
        ("reward_model.model.", "reward_model.strategy", *(f"reward_model.{name}" for name in MODEL_REWARDS)),
    ),
    Resting("reward_model.sandbox_fusion.url", None, ("reward_model.sandbox_fusion.",)),
)
PAIRS = ("data.prompt_key", "data.response_key", "data.prompt_dict_keys", "data.response_dict_keys")
SFT = (
    Resting("data.multiturn.enable", False, ("data.messages_key",)),
    Resting("data.multiturn.enable", True, PAIRS),
)
GENERATE = (Resting("rollout.multi_turn.enable", False, ("rollout.multi_turn.",)),)
RESTING: dict[str, tuple[Resting, ...]] = {"ppo": PPO, "sft": SFT, "generate": GENERATE, "eval": ()}


def resting_notices(config: PPOConfig | SFTConfig | GenerationConfig, user_keys: Collection[str]) -> Iterator[str]:
    command = next(name for name, preset in DEFAULT_PRESET.items() if isinstance(config, PRESETS[preset].schema))
    tree, defaults = config.model_dump(by_alias=True), PRESETS[DEFAULT_PRESET[command]].tree()
    for rest in RESTING[command]:
        keys = sorted(key for key in user_keys if rest.holds(key) and not _is_default(key, tree, defaults))
        if keys and get(tree, rest.switch) is rest.off:
            switch = f"{rest.switch}={'null' if rest.off is None else rest.off}"
            yield f"{switch}, so nothing is left to do for " + ", ".join(keys)


def _is_default(key: str, tree: Tree, defaults: Tree) -> bool:
    """Also where the default is to follow another key. A file that a run wrote sets every key, most of them so."""
    default = get(defaults, key, None)
    followed = get(tree, default[2:-1], None) if isinstance(default, str) and default.startswith("${") else default
    return get(tree, key, None) == followed
