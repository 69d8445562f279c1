"""Ulysses sequence parallelism: several ranks compute the same sequences, each a slice of the tokens.

Everything in a layer but attention treats tokens one by one. Around attention the ranks swap their slices of the tokens
for shares of the heads, and back (DeepSpeed-Ulysses, Jacobs et al. 2023), so each sees all tokens with some of the
heads. How weights lie over the ranks is another matter (hone/training/sharding.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from hone.errors import UserError
from hone.models.attention import Layout
from hone.models.rope import moving_rope


class SequenceRanks:
    """`size` consecutive ranks that share their sequences; building it is collective over all ranks of the run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.group = _group(size) if size > 1 else None
        self.rank = dist.get_rank(self.group) if size > 1 else 0

    def whole(self, columns: Mapping[str, Tensor], mine: Tensor, count: int) -> dict[str, Tensor]:
        """Columns [mine] of the tokens that this rank computed -> fp32 columns [count] of all ranks' tokens.

        All ranks then compute the same loss from the same numbers, so the gradient of a rank's own tokens is complete
        on that rank: the backward pass takes it and adds nothing.
        """
        stacked = torch.stack([column.float() for column in columns.values()], dim=1)
        whole = _Whole.apply(stacked, mine, count, self.group)
        # A view that is written to would lose the hook by which FSDP gathers weights for the backward pass.
        return {name: column.clone() for name, column in zip(columns, whole.unbind(1), strict=True)}


@cache
def _group(size: int) -> dist.ProcessGroup:
    """One communicator serves every model that is shared by as many ranks."""
    return dist.new_subgroups(group_size=size)[0]


class SlicedLayout:
    """A layout whose tokens are cut into equal slices, one a rank, with padding behind the last token."""

    def __init__(self, layout: Layout, ranks: SequenceRanks) -> None:
        self.layout, self.ranks = layout, ranks
        self.tokens = layout.position_ids.shape[1]
        self.width = -(-self.tokens // ranks.size)  # tokens of a slice
        self.begin = ranks.rank * self.width
        self.position_ids = self.own(layout.position_ids[0])[None]

    def own(self, column: Tensor) -> Tensor:
        """[tokens] -> [width] of this rank; 0 on padding."""
        mine = column[self.begin : self.begin + self.width]
        return F.pad(mine, (0, self.width - len(mine)))

    def owned(self, places: Tensor) -> Tensor:
        """Which of the tokens at `places` of the layout this rank computes, [owned] indices into `places`."""
        return (places.div(self.width, rounding_mode="floor") == self.ranks.rank).nonzero().squeeze(1)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """q [width, heads, D], k and v [width, kv_heads, D] of this rank's slice -> [width, heads, D]. kv heads that
        are too few to be dealt evenly are repeated."""
        repeats = math.lcm(k.shape[1], self.ranks.size) // k.shape[1]
        k, v = (x.repeat_interleave(repeats, dim=1) if repeats > 1 else x for x in (k, v))
        q, k, v = self._to_heads(q, k, v)
        return self._to_tokens(self.layout.attend(layer, q, k, v, scale=scale, window=window, softcap=softcap))

    def _to_heads(self, *slices: Tensor) -> list[Tensor]:
        """[width, heads, D] each -> [tokens, heads / size, D] each, in one exchange."""
        pieces = [x.reshape(self.width, self.ranks.size, -1).transpose(0, 1) for x in slices]
        received = _Exchange.apply(torch.cat(pieces, dim=-1), self.ranks.group).flatten(0, 1)[: self.tokens]
        shares = received.split([piece.shape[-1] for piece in pieces], dim=-1)
        return [share.unflatten(-1, (-1, x.shape[-1])) for share, x in zip(shares, slices, strict=True)]

    def _to_tokens(self, share: Tensor) -> Tensor:
        """[tokens, heads / size, D] -> [width, heads, D]."""
        padded = F.pad(share, (0, 0, 0, 0, 0, self.width * self.ranks.size - self.tokens))
        received = _Exchange.apply(padded.reshape(self.ranks.size, self.width, -1), self.ranks.group)
        return received.transpose(0, 1).reshape(self.width, -1, share.shape[-1])


class _Exchange(torch.autograd.Function):
    """[size, ...]: piece i goes to rank i, which lays what it gets in order of sender. It is its own transpose."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(pieces, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grad, ctx.group), None


def _all_to_all(pieces: Tensor, group: dist.ProcessGroup) -> Tensor:
    sent = pieces.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


class _Whole(torch.autograd.Function):
    """Rows [mine, n] of each rank -> [count, n]: every row is 0 on all ranks but one."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, mine: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(mine)
        whole = rows.new_zeros(count, rows.shape[1]).index_copy_(0, mine, rows)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (mine,) = ctx.saved_tensors
        return grad.index_select(0, mine), None, None, None


def check_shareable(model: PreTrainedModel, size: int, key: str) -> None:
    """Raises UserError where `size` ranks cannot share this model's sequences; `key` is where the user set it."""
    if size == 1:
        return
    config, name = model.config.get_text_config(), type(model).__name__
    heads = config.num_attention_heads
    if heads % size:
        raise UserError(
            f"{key}={size}: {name} has {heads} attention heads, which {size} ranks cannot share evenly; set it to a "
            f"number that divides {heads}, or to 1"
        )
    moving = moving_rope(model)
    if moving:
        raise UserError(
            f"{key}={size}: {name} has rope_type={moving}, whose frequencies depend on the longest sequence in "
            "sight, and a rank sees a slice; set it to 1"
        )
