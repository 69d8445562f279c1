"""Attention over sequences laid end to end, hooked into transformers' attention registry.

A model whose implementation is set to `hone` hands its queries, keys and values to the layout object given to the
forward call (`model(..., layout=layout)`). A layout knows which tokens see which: `PackedLayout` here for training and
scoring, the slot cache of the `hf` rollout for generation. Nothing of a model is rewritten or subclassed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from hone.errors import UserError
from hone.models.rectangles import Rectangles, ranges, similar

IMPLEMENTATION = "hone"
LAYER_TYPES = {"full_attention", "sliding_attention"}


class Layout(Protocol):
    position_ids: Tensor  # [1, tokens]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """q [tokens, heads, D], k and v [tokens, kv_heads, D] -> [tokens, heads, D]."""
        ...


def _attention_forward(
    module: nn.Module,
    query: Tensor,  # [1, heads, tokens, D]
    key: Tensor,  # [1, kv_heads, tokens, D]
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if layout is None:
        raise RuntimeError(
            f"{type(module).__name__} did not receive the token layout: this model does not pass keyword arguments on "
            "to its attention, so it cannot run packed; set use_remove_padding=False"
        )
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise RuntimeError(
            f"{type(module).__name__} uses attention sinks or a position bias, which packing does not know"
        )
    if dropout:
        raise UserError(
            f"{type(module).__name__} has attention_dropout={dropout}, which packed attention does not apply; set it "
            "to 0 in override_config, or set use_remove_padding=False"
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = getattr(module, "layer_idx", 0)
    return layout.attend(layer, q, k, v, scale=scale, window=sliding_window, softcap=softcap)[None], None


# The name is not entered in the mask registry on purpose: transformers then builds no mask at all.
AttentionInterface.register(IMPLEMENTATION, _attention_forward)


def use_layouts(model: PreTrainedModel) -> None:
    """Makes layouts the model's attention for good, as training needs: with gradient checkpointing, layers run again in
    the backward pass, long after the forward call has returned."""
    model.config._attn_implementation = IMPLEMENTATION


@contextmanager
def layout_attention(model: PreTrainedModel) -> Iterator[None]:
    """Layouts for a while, without gradients; what was set before is restored."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        config._attn_implementation = before


def supports_layouts(model: PreTrainedModel) -> bool:
    """Whether all that passes between tokens is attention called through the registry, as layouts need.

    Convolutions, recurrences and chunked attention would let sequences laid end to end see each other.
    """
    layers = set(getattr(model.config, "layer_types", None) or ())
    return bool(getattr(model, "_supports_attention_backend", False)) and layers <= LAYER_TYPES


class PackedLayout:
    """Sequences laid end to end; a token sees its own sequence up to itself.

    Matrix products run over all tokens at once; attention alone runs on rectangles of sequences of nearly equal length,
    where causal attention needs no mask: padding stands to the right of every real token.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        tokens = torch.tensor(lengths, dtype=torch.int64)
        self.position_ids = ranges(torch.zeros_like(tokens), tokens)[None].to(device)
        self.rectangles = Rectangles(lengths, similar(lengths, range(len(lengths))), device)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        rectangles = zip(*(self.rectangles.pad(x) for x in (q, k, v)), strict=True)
        return self.rectangles.unpad(
            [causal_attention(*shaped, scale=scale, window=window, softcap=softcap) for shaped in rectangles]
        )


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """q [rows, heads, L, D], k and v [rows, kv_heads, L, D] -> [rows, heads, L, D]; kv heads are shared by groups."""
    length = q.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if softcap is None and (window is None or window >= length):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    distance = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
    visible = (distance >= 0) & (distance < (window or length))
    return masked_attention(q, k, v, visible[None, None], scale=scale, softcap=softcap)


def visible_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, scale: float, softcap: float | None
) -> Tensor:
    """q [rows, heads, Q, D], k and v [rows, kv_heads, K, D], visible [rows, 1, Q, K] -> [rows, heads, Q, D]."""
    if softcap is not None:
        return masked_attention(q, k, v, visible, scale=scale, softcap=softcap)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale, enable_gqa=grouped)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, *, scale: float, softcap: float | None
) -> Tensor:
    """`masked_weights` times v -> [rows, heads, Q, width of v]. Kept to what TorchScript understands."""
    weights = masked_weights(q, k, visible, scale=scale, softcap=softcap)
    return (weights.to(v.dtype) @ v).reshape(q.shape[0], q.shape[1], q.shape[2], v.shape[-1])


def masked_weights(q: Tensor, k: Tensor, visible: Tensor, *, scale: float, softcap: float | None) -> Tensor:
    """What every query makes of every key, fp32 [rows, kv_heads, heads per kv head * Q, K]: query heads that share a kv
    head are laid along the query axis, so keys are never copied.

    q [rows, heads, Q, D], k [rows, kv_heads, K, D]; `visible` is a boolean mask that broadcasts to [rows, kv_heads, Q,
    K]. Kept to what TorchScript understands.
    """
    rows, heads, queries, width = q.shape
    kv_heads = k.shape[1]
    groups = heads // kv_heads
    stacked = q.reshape(rows, kv_heads, groups * queries, width)
    scores = (stacked * scale) @ k.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if queries > 1 and visible.shape[-2] > 1:
        visible = visible.repeat(1, 1, groups, 1)
    return scores.masked_fill_(~visible, float("-inf")).softmax(-1, dtype=torch.float32)
