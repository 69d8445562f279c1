"""Hugging Face models and tokenizers as hone wants them: one dtype, a known attention, a head that starts at zero."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hone.errors import UserError
from hone.models.attention import supports_layouts
from hone.models.liger import use_liger_layers
from hone.models.router import freeze_routers

VALUE_HEADS = ("score", "classifier")  # how heads are called; a critic's may start anew


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from and how it is changed on the way in.

    skeleton: build it of its config.json alone, without weights, on torch's meta device
    """

    path: str
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    attn_implementation: str = "sdpa"
    config_overrides: dict[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False
    external_lib: str | None = None
    gradient_checkpointing: bool = False
    packed: bool = True
    freeze_router: bool = False
    liger: bool = False
    skeleton: bool = False

    @property
    def location(self) -> str:
        return str(Path(self.path).expanduser()) if self.path.startswith("~") else self.path


def available_attention(wanted: str, device: torch.device) -> str:
    """`wanted`, or torch's exact attention where flash attention cannot run; both compute the same function."""
    if wanted.startswith("flash") and (device.type != "cuda" or importlib.util.find_spec("flash_attn") is None):
        return "sdpa"
    return wanted


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    location = str(Path(path).expanduser()) if path.startswith("~") else path
    try:
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer could be loaded from {path!r}: {_first_line(error)}") from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes one up where there are no files
        raise UserError(
            f"no tokenizer could be loaded from {path!r}: its files (for most models tokenizer.json and "
            "tokenizer_config.json) are missing. Copy them there from the model that this one was made from."
        )
    return tokenizer


def load_causal_lm(source: ModelSource) -> PreTrainedModel:
    """The policy. Raises UserError when the folder holds no causal language model or cannot run packed."""
    model, missing = _load(AutoModelForCausalLM, source)
    _refuse_missing(missing, source)
    return _packable(model, source)


def load_value_model(source: ModelSource) -> PreTrainedModel:
    """The critic: the backbone with one number per token. A head that the checkpoint lacks starts at zero."""
    model, missing = _load(AutoModelForTokenClassification, source, num_labels=1, classifier_dropout=0.0)
    head = value_head(model)
    new_head = {name for name in missing if name.startswith(VALUE_HEADS)}
    _refuse_missing(missing - new_head, source)
    if new_head:
        torch.nn.init.zeros_(head.weight)
        if head.bias is not None:
            torch.nn.init.zeros_(head.bias)
    return _packable(model, source)


def value_head(model: PreTrainedModel) -> torch.nn.Linear:
    head = getattr(model, value_head_name(model), None)
    if not isinstance(head, torch.nn.Linear) or head.out_features != 1:
        raise UserError(f"{type(model).__name__} has no linear head with one output, which a critic needs")
    return head


def value_head_name(model: PreTrainedModel) -> str:
    return "score" if hasattr(model, "score") else "classifier"


def load_config(source: ModelSource) -> PretrainedConfig:
    """The model's own, with the overrides."""
    if source.external_lib:
        importlib.import_module(source.external_lib)
    try:
        config = AutoConfig.from_pretrained(source.location, trust_remote_code=source.trust_remote_code)
        _check_overrides(config, source.config_overrides)
        for name, value in source.config_overrides.items():
            setattr(config, name, value)
    except (OSError, ValueError) as error:
        raise UserError(f"no model could be loaded from {source.path!r}: {_first_line(error)}") from error
    return config


def _load(auto: Any, source: ModelSource, **config_changes: Any) -> tuple[PreTrainedModel, set[str]]:
    transformers.utils.logging.disable_progress_bar()  # loading and saving report by hone's own messages
    config = load_config(source)
    try:
        # Set here: from_pretrained hands what a configuration class does not know to the model's constructor.
        for name, value in config_changes.items():
            setattr(config, name, value)
        if source.skeleton:
            return _skeleton(auto, config, source), set()
        model, report = auto.from_pretrained(
            source.location,
            config=config,
            dtype=source.dtype,
            attn_implementation=_attention_of(auto, config, source.attn_implementation),
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with the sizes in the message
        )
    except (OSError, ValueError) as error:
        raise UserError(f"no model could be loaded from {source.path!r}: {_first_line(error)}") from error
    except SafetensorError as error:
        raise UserError(
            f"no model could be loaded from {source.path!r}: a weights file (*.safetensors) is damaged or cut short: "
            f"{_first_line(error)}. Copy or download it again."
        ) from error
    _refuse_mismatched(report["mismatched_keys"], source)
    return _changed(model, source), set(report["missing_keys"])


def _skeleton(auto: Any, config: PretrainedConfig, source: ModelSource) -> PreTrainedModel:
    """The same model without weights. Liger's kernels, which need the device of the run, compute the same."""
    with torch.device("meta"):
        model = auto.from_config(
            config,
            dtype=source.dtype,
            attn_implementation=_attention_of(auto, config, source.attn_implementation),
            trust_remote_code=source.trust_remote_code,
        )
    return _changed(model, replace(source, device=torch.device("meta"), liger=False))


def _refuse_mismatched(mismatched: Any, source: ModelSource) -> None:
    """`mismatched` are (name, shape in the files, shape in the model)."""
    if not mismatched:
        return
    name, stored, wanted = min(mismatched)
    raise UserError(
        f"no model could be loaded from {source.path!r}: its config.json (or override_config) and its weights differ "
        f"in the sizes of {len(mismatched)} tensors, such as {name}: {tuple(stored)} in the files, {tuple(wanted)} by "
        "the configuration. Restore the config.json that belongs to the weights."
    )


def _refuse_missing(missing: set[str], source: ModelSource) -> None:
    """transformers would start them at random."""
    if missing:
        raise UserError(
            f"no model could be loaded from {source.path!r}: its files lack {len(missing)} tensors that the model has, "
            f"such as {min(missing)}. Restore the config.json that belongs to the weights, or copy all weights files."
        )


def _changed(model: Any, source: ModelSource) -> PreTrainedModel:
    """On its device, with layers frozen, replaced or recomputed as the source says."""
    model.to(source.device)
    if source.freeze_router:
        freeze_routers(model)
    if source.liger:
        use_liger_layers(model)
    if source.gradient_checkpointing:
        enable_checkpointing(model)
    return model


def _packable(model: PreTrainedModel, source: ModelSource) -> PreTrainedModel:
    if source.packed and not supports_layouts(model):
        raise UserError(
            f"{type(model).__name__} cannot run packed: not all of its layers are attention called through "
            "transformers' registry; set use_remove_padding=False in its model section (and, for the policy, another "
            "rollout than hf)"
        )
    return model


def _attention_of(auto: Any, config: PretrainedConfig, wanted: str) -> str:
    """`eager` for the families that transformers has no sdpa for (Gemma 2 soft-caps its attention scores)."""
    family = auto._model_mapping.get(type(config), None)
    return "eager" if wanted == "sdpa" and not getattr(family, "_supports_sdpa", True) else wanted


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Layers keep their inputs alone and run again in the backward pass. Newer versions of transformers call it
    activation checkpointing."""
    switch = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    switch({"use_reentrant": False})


def _check_overrides(config: Any, overrides: dict[str, Any]) -> None:
    unknown = [key for key in overrides if not hasattr(config, key)]
    if unknown:
        raise UserError(
            f"model.override_config: {type(config).__name__} has no {', '.join(map(repr, unknown))}; "
            "name a key of the model's config.json"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
