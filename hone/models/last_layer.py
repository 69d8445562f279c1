"""Of the last layer's states only those that somebody reads matter, so its MLP computes no others.

Attention needs the keys of all tokens in every layer, but what the last layer makes of a token of a prompt is never
looked at: an update reads the states that predict responses, a rollout those of the last tokens.
"""

from __future__ import annotations

from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

WORTH_IT = 0.9  # computing more of the tokens than this costs as much as computing them all
_INSTALLING = Lock()


def distinct_tokens(index: Tensor, tokens: int) -> Tensor | None:
    """The different numbers in `index`, ascending; None when they are nearly all of 0 .. tokens - 1."""
    read = torch.zeros(tokens, dtype=torch.bool, device=index.device).index_fill_(0, index, True)
    found = read.nonzero().squeeze(1)
    return found if len(found) < WORTH_IT * tokens else None


def prune_last_layer(model: PreTrainedModel) -> None:
    """From now on the last layer's MLP computes only `read_tokens` [n], where the model is called with them, and gives
    0 elsewhere. Does nothing to models that are built otherwise."""
    base: Any = model.base_model
    layer = _last_layer(model)
    if layer is None:
        return
    with _INSTALLING:
        reading = getattr(layer, "reading", None) or _install(layer)
    former = getattr(base, "reading", reading)  # another layer's, where a model has been cut
    former.on, reading.on = False, True
    base.reading = reading


def _install(layer: Any) -> _Reading:
    layer.reading = reading = _Reading()
    layer.self_attn.register_forward_pre_hook(reading.begin, with_kwargs=True)
    layer.mlp.register_forward_pre_hook(reading.select)
    layer.mlp.register_forward_hook(reading.scatter)
    return reading


def _last_layer(model: PreTrainedModel) -> Any:
    """The last layer if its MLP treats tokens one by one; experts also report where they sent each token."""
    layers = getattr(model.base_model, "layers", None)
    last = layers[-1] if isinstance(layers, nn.ModuleList) and len(layers) else None
    parts = getattr(last, "self_attn", None), getattr(last, "mlp", None)
    return last if all(isinstance(p, nn.Module) and not hasattr(p, "experts") for p in parts) else None


class _Reading:
    """Hooks inside of the layer, so that gradient checkpointing, which runs a layer again, runs them again too."""

    def __init__(self) -> None:
        self.on = True
        self.of_thread: dict[int, tuple[Tensor | None, int]] = {}  # the tokens that are read, and how many there are

    def begin(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.of_thread[get_ident()] = kwargs.get("read_tokens") if self.on else None, 0

    def select(self, mlp: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        read, _ = self.of_thread[get_ident()]
        if read is None:
            return args
        self.of_thread[get_ident()] = read, args[0].shape[1]
        return (args[0].index_select(1, read), *args[1:])

    def scatter(self, mlp: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        read, tokens = self.of_thread[get_ident()]
        if read is None:
            return output
        return output.new_zeros(1, tokens, output.shape[2]).index_copy(1, read, output)
