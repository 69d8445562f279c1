"""LoRA: what its keys ask for, what the folder of a trained adapter must hold, and which other keys then rest."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .places import impossible_path
from .problems import Problem
from .schema import PPOConfig, SFTConfig
from .schema.model import LoraKeys

POLICY, CRITIC, SFT = "actor_rollout_ref.model", "critic.model", "model"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

# Fields of adapter_config.json: those that say what is computed here, and those that say where it came from or how it
# was initialised or trained. Any other field that is set changes the computation in a way that is not known here.
COMPUTED = ("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
TOLD = (
    "auto_mapping", "base_model_name_or_path", "bias", "eva_config", "exclude_modules", "inference_mode",
    "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "megatron_config",
    "megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision", "runtime_config",
    "target_modules", "task_type",
)  # fmt: skip
UNSET: tuple[Any, ...] = (None, False, [], {}, "none")


def lora_problems(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    """FSDP1 lays the weights of a layer into one tensor, which has one format; an adapter is fp32."""
    if isinstance(config, SFTConfig) or config.ranks == 1:
        return
    for section, keys in _sections(config).items():
        strategy, key, dtype = _sharding(config, section)
        if keys.trains_adapter and strategy == "fsdp" and dtype not in ("fp32", "float32"):
            wrong = f"{dtype} cannot lie in one flat tensor with an adapter in fp32, as strategy fsdp wants"
            yield Problem(key, wrong, "fp32", "use strategy fsdp2, or fp32", (f"{section}.lora_rank",))


def adapter_problems(config: PPOConfig | SFTConfig) -> Iterator[Problem]:
    """The package that makes adapters, and the folders of trained ones, must be there."""
    for section, keys in _sections(config).items():
        path = getattr(keys, "lora_adapter_path", None)
        if keys.trains_adapter and find_spec("peft") is None:
            key = f"{section}.lora_rank" if path is None else f"{section}.lora_adapter_path"
            yield Problem(key, "peft is not installed", "the package peft", 'pip install "hone-rl[lora]"')
        if path is not None and (problem := impossible_path(f"{section}.lora_adapter_path", path)):
            yield problem
        elif path is not None:
            yield from _adapter(section, keys, Path(path).expanduser())


def lora_notices(config: PPOConfig | SFTConfig, user_keys: Collection[str]) -> Iterator[str]:
    for section, keys in _sections(config).items():
        named = [f"{section}.{name}" for name in ("lora_alpha", "target_modules", "exclude_modules")]
        resting = ", ".join(key for key in named if key in user_keys)
        if resting and not keys.trains_adapter:
            yield f"{section}.lora_rank=0 trains all weights, so nothing is left to do for {resting}"
        elif resting and getattr(keys, "lora_adapter_path", None) is not None:
            yield f"the adapter in {section}.lora_adapter_path has its own, so nothing is left to do for {resting}"
    if isinstance(config, PPOConfig) and config.needs_reference and config.actor_rollout_ref.model.trains_adapter:
        own = ("actor_rollout_ref.ref.fsdp_config.", "actor_rollout_ref.ref.strategy")
        if idle := ", ".join(sorted(key for key in user_keys if key.startswith(own))):
            yield f"the reference is the policy's own model without its adapter, so nothing is left to do for {idle}"


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Raises ValueError saying what is wrong with an adapter_config.json that cannot be gone on from."""
    try:
        found = json.loads((folder / ADAPTER_CONFIG).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder / ADAPTER_CONFIG} is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get("peft_type") != "LORA":
        raise ValueError(f"{folder} holds no LoRA adapter")
    changes = [name for name, value in found.items() if name not in (*COMPUTED, *TOLD) and value not in UNSET]
    if found.get("bias", "none") != "none":
        changes.append("bias")
    if str(found.get("init_lora_weights")).lower().startswith(("pissa", "olora", "corda", "lora_ga")):
        changes.append("init_lora_weights")  # these subtract the adapter's start from the base weights
    if changes:
        raise ValueError(f"{folder} holds an adapter that is more than LoRA ({changes[0]}={found[changes[0]]})")
    return found


def _sections(config: PPOConfig | SFTConfig) -> dict[str, LoraKeys]:
    if isinstance(config, SFTConfig):
        return {SFT: config.model}
    critic: dict[str, LoraKeys] = {CRITIC: config.critic.model} if config.trains_critic else {}
    return {POLICY: config.actor_rollout_ref.model, **critic}


def _adapter(section: str, keys: LoraKeys, folder: Path) -> Iterator[Problem]:
    key, expected = f"{section}.lora_adapter_path", f"a folder with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
    missing = [name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if not (folder / name).is_file()]
    if missing:
        yield Problem(key, f"there is no {folder / missing[0]}", expected, f"set {key} to a trained adapter")
        return
    try:
        trained = read_adapter_config(folder)
    except ValueError as error:
        yield Problem(key, str(error), "an adapter of plain LoRA", f"set {key} to another one")
        return
    for name, field in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        wanted, default = getattr(keys, name), type(keys).model_fields[name].default
        if wanted not in (default, trained.get(field)):
            wrong = f"{wanted:g} differs from the adapter's {field}={trained.get(field)} in {folder}"
            yield Problem(f"{section}.{name}", wrong, f"{trained.get(field)}", f"remove {section}.{name}", (key,))


def _sharding(config: PPOConfig, section: str) -> tuple[str, str, str]:
    """Strategy, key of the format of the weights, and that format."""
    critic, actor = config.critic, config.actor_rollout_ref.actor
    if section == CRITIC:
        return critic.strategy, "critic.model.fsdp_config.model_dtype", critic.model.fsdp_config.model_dtype
    return actor.strategy, "actor_rollout_ref.actor.fsdp_config.model_dtype", actor.fsdp_config.model_dtype
