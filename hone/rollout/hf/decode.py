"""The running rows draw one token after another, in parts side by side.

A part does not wait for the others after every token, unless some token may end a row: which rows are computed
together, and with it the last bits of their log-probs, must not depend on which thread is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from threading import Event
from time import perf_counter

import torch

from hone.models.attention import layout_attention
from hone.models.rope import moving_rope
from hone.models.threads import run_side_by_side, side_by_side
from hone.rollout.hf.cache import DecodeLayout, SlotCache
from hone.rollout.hf.next_tokens import Drawn, NextTokens, append
from hone.rollout.hf.request import Request
from hone.rollout.hf.sampling import RowSampling

ROWS_OF_A_PART = 64  # fewer are not worth a thread
PATIENCE = 0.5  # seconds


class Decoder:
    """sampling: of the running rows, in their order; None: others run than before"""

    def __init__(self, next_tokens: NextTokens, cache: SlotCache) -> None:
        self.next_tokens = next_tokens
        self.cache = cache
        self.sampling: RowSampling | None = None
        self._seconds = inf  # that a token of every row took last

    def run(self, rows: Sequence[Request], version: int, *, once: bool) -> None:
        """Every row, r in slot r, draws a token; unless `once` they go on until one of them may be finished."""
        if self.sampling is None:
            self.sampling = RowSampling.of([row.sampling_now for row in rows], self.next_tokens.device)
            self._seconds = inf
        begun, parts, failed = perf_counter(), self.parts(len(rows)), Event()
        most = 1 if once else self._most(rows, self.sampling, parts)
        running = [
            _Part(self.next_tokens, self.cache, rows[part], part.start, self.sampling.of_rows(part)) for part in parts
        ]

        def draw(part: _Part) -> list[Drawn]:
            try:
                return part.draw(version, most, failed)
            except BaseException:
                failed.set()
                raise

        with layout_attention(self.next_tokens.model):
            drawn = list(run_side_by_side(draw, running, len(parts)))
        for part, of_part in zip(running, drawn, strict=True):
            append(part.rows, of_part)
        self._seconds = (perf_counter() - begun) / len(drawn[0])

    def _most(self, rows: Sequence[Request], sampling: RowSampling, parts: Sequence[slice]) -> int:
        """Tokens that every row may draw before anybody looks at it."""
        if sampling.penalises or any(row.stop_strings is not None for row in rows):
            return 1
        if len(parts) > 1 and any(row.stop_ids for row in rows):
            return 1
        return max(1, min(int(PATIENCE / self._seconds), *(row.room for row in rows)))

    def parts(self, rows: int) -> list[slice]:
        """The running rows in the parts that are computed side by side."""
        apart = self.next_tokens.device.type == "cpu" and moving_rope(self.next_tokens.model) is None
        count = max(min(side_by_side(), rows // ROWS_OF_A_PART), 1) if apart else 1
        return [slice(rows * i // count, rows * (i + 1) // count) for i in range(count)]


class _Part:
    """Rows in consecutive slots, from `first` on. They get their tokens together at the end, since Python takes long
    over them."""

    def __init__(
        self, next_tokens: NextTokens, cache: SlotCache, rows: Sequence[Request], first: int, sampling: RowSampling
    ) -> None:
        self.next_tokens, self.cache, self.rows, self.first, self.sampling = next_tokens, cache, rows, first, sampling
        cached, device = [row.cached for row in rows], next_tokens.device
        self.longest = max(cached)
        self.positions = torch.tensor(cached, device=device)  # [rows] of their last tokens, which are not in the cache
        self.tokens = torch.tensor([row.token_ids[-1] for row in rows], device=device)
        self.endings = torch.tensor(sorted(frozenset().union(*(row.stop_ids for row in rows))), device=device)

    def draw(self, version: int, most: int, failed: Event) -> list[Drawn]:
        """Up to so many tokens of every row, fewer when one of them may end a row or another part has failed."""
        drawn: list[Drawn] = []
        while not drawn or (len(drawn) < most and not failed.is_set() and not self._may_have_ended()):
            layout = DecodeLayout(self.cache, self.positions, self.longest, self.first)
            logits = self.next_tokens.logits(self.tokens, layout, None)
            drawn.append(self.next_tokens.draw(self.rows, logits, self.sampling, version, ahead=len(drawn)))
            self.tokens = drawn[-1].tokens
            self.positions, self.longest = self.positions + 1, self.longest + 1
        return drawn

    def _may_have_ended(self) -> bool:
        """Whether the last token of a row is one that ends some row."""
        return self.endings.numel() > 0 and bool(torch.isin(self.tokens, self.endings).any())
