"""Responses that share their prompts: a prompt is computed once, each response sees it and itself.

With n responses to a prompt, n - 1 copies of the prompt are spared in every pass. The numbers are those of the
unshared sequences: no token of a prompt sees a response, so all copies of a prompt would be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from hone.models.joined_prompts import JoinedPrompts, can_join
from hone.models.masked_prompts import MaskedPrompts
from hone.models.rectangles import begins, ranges


class SharedPromptLayout:
    """Sequences laid end to end in a micro-batch, computed as their distinct prompts followed by their responses, those
    to the same prompt one behind the other.

    lengths:        [N] tokens of each sequence
    prompt_lengths: [N] how many of them are the prompt
    families:       [N] equal for sequences whose prompts have the same tokens
    """

    def __init__(
        self,
        lengths: Sequence[int],
        prompt_lengths: Sequence[int],
        families: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        first: dict[int, int] = {}
        for row, family in enumerate(families):
            first.setdefault(family, row)
        prompt_of = {family: prompt for prompt, family in enumerate(first)}
        own = [prompt_of[family] for family in families]
        order = sorted(range(len(own)), key=own.__getitem__)
        self.own = [own[row] for row in order]  # which prompt each response continues
        self.device, self.longest = device, max(lengths, default=0)
        sizes, prompts, owners = (torch.tensor(x, dtype=torch.int64) for x in (lengths, prompt_lengths, own))
        self._lay(sizes, prompts, owners, [*first.values()], order)

    def _lay(self, lengths: Tensor, prompts: Tensor, own: Tensor, first: list[int], order: list[int]) -> None:
        """own: the prompt of each row; first: the row of each prompt; order: of the rows' responses"""
        starts, responses = begins(lengths), lengths - prompts
        segments = torch.cat([prompts[first], responses[order]])
        computed = torch.cat([starts[first], (starts + prompts)[order]])
        positions = torch.cat([torch.zeros_like(prompts[first]), prompts[order]])
        at, rank = begins(segments), torch.empty_like(own)
        rank[order] = torch.arange(len(order)) + len(first)
        halves = torch.stack([at[own], at[rank]], 1), torch.stack([prompts, responses], 1)
        self.segments = segments.tolist()  # tokens of the prompts, then of the responses
        # [distinct] which token of the micro-batch is computed
        self.tokens = ranges(computed, segments).to(self.device)
        self.position_ids = ranges(positions, segments)[None].to(self.device)
        self.places = ranges(*(half.flatten() for half in halves)).to(self.device)  # [tokens] where each is computed

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        if softcap is None and (window is None or window >= self.longest) and can_join(q, k, v):
            return self._joined.attend(q, k, v, scale)
        return self._masked.attend(q, k, v, scale=scale, window=window, softcap=softcap)

    @cached_property
    def _joined(self) -> JoinedPrompts:
        return JoinedPrompts(self.segments, self.own)

    @cached_property
    def _masked(self) -> MaskedPrompts:
        return MaskedPrompts(self.segments, self.own, self.device)
