"""Attention of responses to a shared prompt and to themselves at once: the prompt's keys are laid before those of each
response, and a mask says who sees whom. It serves every device, window and soft-capping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hone.models.attention import causal_attention, visible_attention
from hone.models.rectangles import Rectangles, similar


@dataclass(frozen=True)
class _Responses:
    """A rectangle of responses and where their prompts stand."""

    prompts: int  # index of the rectangle that holds the prompts; -1: responses without a prompt
    rows: Tensor  # [responses] rows of that rectangle
    distance: Tensor  # [responses, R, P + R] tokens from a key to the query; negative where the query must not look


class MaskedPrompts:
    """Rectangles of prompts, then rectangles of responses whose prompts stand in the same rectangle.

    segments: tokens of the prompts, then of the responses, as they lie end to end
    own:      [responses] which prompt each continues
    """

    def __init__(self, segments: Sequence[int], own: Sequence[int], device: torch.device | str = "cpu") -> None:
        count = len(segments) - len(own)
        prompt_groups = similar(segments, range(count))
        seat = {p: (g, i) for g, group in enumerate(prompt_groups) for i, p in enumerate(group)}
        by_rectangle: dict[int, list[int]] = defaultdict(list)
        for row, prompt in enumerate(own):
            by_rectangle[seat.get(prompt, (-1, 0))[0]].append(count + row)
        groups, self.responses = list(prompt_groups), []
        for rectangle, members in by_rectangle.items():
            for group in similar(segments, members):
                prompts = [own[s - count] for s in group]
                rows = torch.tensor([seat.get(p, (-1, 0))[1] for p in prompts], device=device)
                width = segments[prompt_groups[rectangle][0]] if rectangle >= 0 else 0
                sizes = torch.tensor([segments[p] for p in prompts], device=device)
                self.responses.append(_Responses(rectangle, rows, _distances(sizes, width, segments[group[0]])))
                groups.append(group)
        self.prompt_rectangles = len(prompt_groups)
        self.rectangles = Rectangles(segments, groups, device)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """q [tokens, heads, D], k and v [tokens, kv_heads, D] -> [tokens, heads, D]."""
        queries, keys, values = (self.rectangles.pad(x) for x in (q, k, v))
        outputs = [
            causal_attention(queries[i], keys[i], values[i], scale=scale, window=window, softcap=softcap)
            for i in range(self.prompt_rectangles)
        ]
        for i, part in enumerate(self.responses, start=self.prompt_rectangles):
            k_, v_ = (self._with_prompts(part, x, x[i]) for x in (keys, values))
            visible = (part.distance >= 0) & (part.distance < (window or part.distance.shape[-1]))
            outputs.append(visible_attention(queries[i], k_, v_, visible[:, None], scale=scale, softcap=softcap))
        return self.rectangles.unpad(outputs)

    def _with_prompts(self, part: _Responses, rectangles: list[Tensor], own: Tensor) -> Tensor:
        """[responses, kv_heads, P + R, D] keys (or values) of each response behind those of its prompt."""
        if part.prompts < 0:
            return own
        return torch.cat([rectangles[part.prompts].index_select(0, part.rows), own], dim=2)


def _distances(prompts: Tensor, width: int, response: int) -> Tensor:
    """[responses, R, P + R] for prompts of the given sizes in a rectangle of `width`; -1 for the prompts' padding."""
    at = torch.arange(response, device=prompts.device)
    to_prompt = prompts[:, None, None] + at[:, None] - torch.arange(width, device=prompts.device)
    to_prompt = to_prompt.masked_fill(torch.arange(width, device=prompts.device) >= prompts[:, None, None], -1)
    return torch.cat([to_prompt, (at[:, None] - at).expand(len(prompts), -1, -1)], dim=2)
