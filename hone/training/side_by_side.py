"""Micro-batches cut finer, so that several can be computed side by side in the memory that one may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hone.training.micro_batches import MicroBatching, Prompts

WORTH_A_THREAD = 256  # tokens
MORE_TOKENS = 1.1  # of prompts that several micro-batches compute: more is not worth it


@dataclass(frozen=True)
class Passes:
    """plan: the rows of each micro-batch, of which `at_once` are computed at a time"""

    at_once: int
    plan: list[list[int]]


def cut_finer(batching: MicroBatching, lengths: Sequence[int], prompts: Prompts | None, most: int) -> list[Passes]:
    """`batching.plan` for up to `most` threads: what they compute at a time keeps within the limit of one micro-batch,
    and all get about as much to do. Rows too long to share that limit come first, one micro-batch after the other.
    Where trajectories are counted and share prompts, a few more tokens may be computed at a time (`MORE_TOKENS`)."""
    for count in range(min(most, _threads_worth(batching, lengths)), 1, -1):
        cut = _cut(batching, lengths, prompts, count)
        if prompts is None or _spares_as_much(cut, batching.plan(lengths, prompts), lengths, prompts):
            return cut
    return [Passes(1, batching.plan(lengths, prompts))]


def _cut(batching: MicroBatching, lengths: Sequence[int], prompts: Prompts | None, count: int) -> list[Passes]:
    if batching.max_tokens is None:
        size = _even(len(lengths), batching.size // count, count)
        return [Passes(count, replace(batching, size=size).plan(lengths, prompts))]
    limit = batching.max_tokens // count
    long, short = (_Rows.of(lengths, prompts, longer, limit) for longer in (True, False))
    passes = Passes(1, long.plan(batching)), Passes(count, short.plan(short.evenly(batching, limit, count)))
    return [each for each in passes if each.plan]


def _spares_as_much(cut: list[Passes], plain: list[list[int]], lengths: Sequence[int], prompts: Prompts) -> bool:
    """Whether prompts are not computed much more often than in the plain plan, nor more tokens at a time."""

    def computed(rows: list[int]) -> int:
        return sum(lengths[row] for row in rows) - prompts.of_rows(rows).repeated

    whole = [computed(rows) for rows in plain]
    pieces = [sorted(computed(rows) for rows in passes.plan) for passes in cut]
    together = max(sum(sizes[-passes.at_once :]) for sizes, passes in zip(pieces, cut, strict=True))
    return sum(map(sum, pieces)) <= MORE_TOKENS * sum(whole) and together <= MORE_TOKENS * max(whole)


def _threads_worth(batching: MicroBatching, lengths: Sequence[int]) -> int:
    """How many threads the tokens of one micro-batch keep busy."""
    total = sum(lengths)
    if batching.max_tokens is not None:
        return min(total, batching.max_tokens) // WORTH_A_THREAD
    size = min(batching.size, len(lengths))
    return min(size, total * size // max(len(lengths), 1) // WORTH_A_THREAD)


@dataclass(frozen=True)
class _Rows:
    """Some of the sequences: their rows, lengths and prompts."""

    rows: list[int]
    lengths: list[int]
    prompts: Prompts | None

    @classmethod
    def of(cls, lengths: Sequence[int], prompts: Prompts | None, longer: bool, limit: int) -> _Rows:
        """Those that are longer than the limit, or those that are not."""
        rows = [row for row, length in enumerate(lengths) if (length > limit) == longer]
        return cls(rows, [lengths[row] for row in rows], prompts.of_rows(rows) if prompts else None)

    def plan(self, batching: MicroBatching) -> list[list[int]]:
        return [[self.rows[i] for i in part] for part in batching.plan(self.lengths, self.prompts)]

    def evenly(self, batching: MicroBatching, limit: int, most: int) -> MicroBatching:
        """Micro-batches of up to `limit` tokens, as many for each of `most` threads."""
        tokens = sum(self.lengths) - (self.prompts.repeated if self.prompts else 0)
        # A micro-batch ends with the last row that fits: half a row above the mean, they come out as the mean.
        budget = _even(tokens, limit, most) + max(self.lengths, default=0) // 2
        return replace(batching, max_tokens=max(min(budget, limit), max(self.lengths, default=1)))


def _even(total: int, limit: int, most: int) -> int:
    """How much each of the fewest equal pieces has, of at most `limit`, when their number is a multiple of `most`."""
    rounds = -(-total // (limit * most))
    return -(-total // (max(rounds, 1) * most))
