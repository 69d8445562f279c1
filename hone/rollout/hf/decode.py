"""The running rows draw one token after another, in parts side by side.

A part does not wait for the others after every token: all go on until a row is finished, or until those who want to
send or cancel a request have waited long enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from time import monotonic

import torch

from hone.models.attention import layout_attention
from hone.models.rope import moving_rope
from hone.models.threads import run_side_by_side, side_by_side
from hone.rollout.hf.cache import DecodeLayout, SlotCache
from hone.rollout.hf.next_tokens import NextTokens
from hone.rollout.hf.request import Request
from hone.rollout.hf.sampling import RowSampling

ROWS_OF_A_PART = 64  # fewer are not worth a thread
PATIENCE = 0.1  # seconds


class Decoder:
    """sampling: of the running rows, in their order; None: others run than before"""

    def __init__(self, next_tokens: NextTokens, cache: SlotCache) -> None:
        self.next_tokens = next_tokens
        self.cache = cache
        self.sampling: RowSampling | None = None

    def run(self, rows: Sequence[Request], version: int, *, once: bool) -> None:
        """Every row, r in slot r, draws a token; unless `once` they go on until one of them is finished."""
        if self.sampling is None:
            self.sampling = RowSampling.of([row.sampling_now for row in rows], self.next_tokens.device)
        sampling, parts = self.sampling, self.parts(len(rows))
        pause, until = Event(), monotonic() + (0 if once else PATIENCE)

        def run_part(part: slice) -> None:
            try:
                running = _Part(self.next_tokens, self.cache, rows[part], part.start, sampling.of_rows(part))
                running.draw(version)
                while not (pause.is_set() or running.ended or monotonic() >= until):
                    running.draw(version)
            finally:
                pause.set()  # for all parts

        with layout_attention(self.next_tokens.model):
            list(run_side_by_side(run_part, parts, len(parts)))

    def parts(self, rows: int) -> list[slice]:
        """The running rows in the parts that are computed side by side."""
        apart = self.next_tokens.device.type == "cpu" and moving_rope(self.next_tokens.model) is None
        count = max(min(side_by_side(), rows // ROWS_OF_A_PART), 1) if apart else 1
        return [slice(rows * i // count, rows * (i + 1) // count) for i in range(count)]


class _Part:
    """Rows in consecutive slots, from `first` on."""

    def __init__(
        self, next_tokens: NextTokens, cache: SlotCache, rows: Sequence[Request], first: int, sampling: RowSampling
    ) -> None:
        self.next_tokens, self.cache, self.rows, self.first, self.sampling = next_tokens, cache, rows, first, sampling
        cached, device = [row.cached for row in rows], next_tokens.device
        self.longest = max(cached)
        self.positions = torch.tensor(cached, device=device)  # [rows] of their last tokens, which are not in the cache
        self.tokens = torch.tensor([row.token_ids[-1] for row in rows], device=device)

    def draw(self, version: int) -> None:
        layout = DecodeLayout(self.cache, self.positions, self.longest, self.first)
        logits = self.next_tokens.logits(self.tokens, layout, None)
        self.tokens = self.next_tokens.append(self.rows, logits, self.sampling, version)
        self.positions, self.longest = self.positions + 1, self.longest + 1

    @property
    def ended(self) -> bool:
        return any(row.stop_reason is not None for row in self.rows)
