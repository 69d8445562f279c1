"""Which layers get an adapter: the linear layers of a model that a choice by names or by a pattern means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hone.errors import UserError

ALL_LINEAR = "all-linear"
NAMES = re.compile(r"[\w.]+(\s*,\s*[\w.]+)*")
Choice = str | Sequence[str]


def target_layers(model: PreTrainedModel, targets: Choice, excluded: Choice | None, section: str) -> list[str]:
    """Full names of the layers meant by `targets` and not by `excluded`, as the keys `section`.target_modules and
    `section`.exclude_modules have them. Raises UserError where a part of the choice means nothing, or something else
    than a linear layer before the head."""
    layers = linear_layers(model)
    if targets == ALL_LINEAR:
        chosen = layers
    else:
        everything = [name for name, _ in model.named_modules() if name]
        chosen = _meant(targets, everything, f"{section}.target_modules", layers)
        for name in chosen:
            check_layer(name, layers, f"{section}.target_modules")
    out = set() if excluded is None else set(_meant(excluded, chosen, f"{section}.exclude_modules", chosen))
    left = [name for name in chosen if name not in out]
    if not left:
        raise UserError(f"{section}.exclude_modules leaves no layer for an adapter; exclude fewer")
    return left


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Those that an adapter can be put around: every linear layer but the head behind the last hidden state."""
    inside = {id(module) for module in model.base_model.modules()}
    heads = {id(model.get_output_embeddings())}
    linear = (nn.Linear, Conv1D)
    return [n for n, m in model.named_modules() if isinstance(m, linear) and id(m) in inside and id(m) not in heads]


def check_layer(name: str, layers: Iterable[str], key: str) -> None:
    if name not in set(layers):
        raise UserError(
            f"{key}: {name} is no linear layer inside the transformer; embeddings, norms and the output head get no "
            f"adapter. Name some of {', '.join(last_names(layers))}"
        )


def short_names(model: PreTrainedModel, chosen: Sequence[str]) -> list[str]:
    """The last parts of the names where these mean no other module, as an adapter_config.json usually has them; the
    full names otherwise."""
    last, wanted = set(last_names(chosen)), set(chosen)
    others = (name for name, _ in model.named_modules() if name and name not in wanted)
    return list(chosen) if any(name.rpartition(".")[2] in last for name in others) else sorted(last)


def last_names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[2] for name in names))


def _meant(choice: Choice, names: Sequence[str], key: str, examples: Iterable[str]) -> list[str]:
    """The names that the choice means. A list, or text with commas, holds names or their last parts; any other text is
    a regular expression for a whole name."""
    parts = [part.strip() for part in choice.split(",")] if isinstance(choice, str) else choice
    if isinstance(choice, str) and not NAMES.fullmatch(choice):
        parts = [choice]
        found = {choice: {name for name in names if _pattern(choice, key).fullmatch(name)}}
    else:
        found = {part: {name for name in names if name == part or name.endswith(f".{part}")} for part in parts}
    unknown = [part for part in parts if not found[part]]
    if unknown or not parts:
        known = ", ".join(last_names(examples))
        raise UserError(f"{key}: there is no layer {', '.join(map(repr, unknown))}; expected some of {known}")
    return [name for name in names if any(name in some for some in found.values())]


def _pattern(text: str, key: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UserError(f"{key}={text!r} is not a regular expression: {error}") from error
