"""Segments of tokens laid end to end, viewed as rectangles of nearly equal length: the form that attention wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Rectangles:
    """Each group of segments as a rectangle of its longest; padding stands to the right of every real token.

    lengths: of the segments, in the order in which they lie end to end
    groups:  indices of segments, the longest of each group first; every segment that has tokens is in exactly one
    """

    def __init__(
        self, lengths: Sequence[int], groups: Sequence[Sequence[int]], device: torch.device | str = "cpu"
    ) -> None:
        self.shapes = [(len(group), lengths[group[0]]) for group in groups]
        segments = torch.tensor([segment for group in groups for segment in group], dtype=torch.int64)
        widths = torch.tensor([width for rows, width in self.shapes for _ in range(rows)], dtype=torch.int64)
        tokens = torch.tensor(lengths, dtype=torch.int64)
        starts, sizes = begins(tokens)[segments], tokens[segments]
        last = (starts + sizes - 1).repeat_interleave(widths)
        gather, places = ranges(starts, widths).minimum(last), torch.empty(int(tokens.sum()), dtype=torch.int64)
        places[ranges(starts, sizes)] = ranges(begins(widths), sizes)
        self.gather = gather.to(device)  # [padded] the token that stands at each place
        self.places = places.to(device)  # [tokens] where each token stands in the rectangles

    def pad(self, tokens: Tensor) -> list[Tensor]:
        """[tokens, heads, D] -> one [segments, heads, width, D] per group."""
        return self._shaped(_Pad.apply(tokens, self.gather, self.places))

    def pad_with_zeros(self, tokens: Tensor) -> list[Tensor]:
        """`pad` without a gradient, and 0 on padding."""
        return self._shaped(_spread(tokens, self.places, len(self.gather)))

    def _shaped(self, padded: Tensor) -> list[Tensor]:
        pieces = padded.split([rows * width for rows, width in self.shapes])
        return [
            piece.view(rows, width, *piece.shape[1:]).transpose(1, 2)
            for piece, (rows, width) in zip(pieces, self.shapes, strict=True)
        ]

    def unpad(self, rectangles: Sequence[Tensor]) -> Tensor:
        """One [segments, heads, width, D] per group -> [tokens, heads, D]."""
        flat = [r.transpose(1, 2).reshape(-1, r.shape[1], r.shape[3]) for r in rectangles]
        return _Unpad.apply(torch.cat(flat), self.places)


class _Pad(torch.autograd.Function):
    """tokens -> rectangles. What stands on padding is seen by padding alone, so no gradient comes back from there, and
    the backward pass is a plain gather instead of a sum over duplicates."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, gather: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return tokens.index_select(0, gather)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class _Unpad(torch.autograd.Function):
    """rectangles -> tokens; padding gets a gradient of exactly zero."""

    @staticmethod
    def forward(ctx: Any, rectangles: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(rectangles)
        return rectangles.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return _spread(grad, places, ctx.size), None


def _spread(tokens: Tensor, places: Tensor, size: int) -> Tensor:
    return tokens.new_zeros(size, *tokens.shape[1:]).index_copy_(0, places, tokens)


def begins(lengths: Tensor) -> Tensor:
    """[n] where each of the lengths begins when they are laid end to end."""
    return lengths.cumsum(0) - lengths


def ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """starts[i], starts[i] + 1, ... for lengths[i] numbers of every i, end to end."""
    return (starts - begins(lengths)).repeat_interleave(lengths) + torch.arange(int(lengths.sum()))


def similar(lengths: Sequence[int], segments: Sequence[int], fill: float = 0.85) -> list[list[int]]:
    """The segments that have tokens in groups, longest first: the shortest of a group is at least `fill` of its
    longest."""
    groups: list[list[int]] = []
    for segment in sorted((s for s in segments if lengths[s]), key=lambda s: -lengths[s]):
        if groups and lengths[segment] >= fill * lengths[groups[-1][0]]:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups
