"""How a batch is dealt to ranks and their results are joined: any number of rows on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

import torch

from hone.batch import Batch


@dataclass(frozen=True)
class Dealing:
    """balance:     close token counts; otherwise close row counts, in order
    keep_groups: rows of one group (responses to one prompt) go to one rank, which can then compute the prompt once
    """

    balance: bool = True
    keep_groups: bool = False

    def rows(self, batch: Batch, ranks: int) -> list[list[int]]:
        """The rows of each rank, in order; every row is on one rank. With few rows some ranks have none."""
        groups = batch["group"].tolist() if self.keep_groups and "group" in batch else list(range(len(batch)))
        units: dict[int, list[int]] = {}
        for row, group in enumerate(groups):
            units.setdefault(group, []).append(row)
        lengths = batch.lengths.tolist()
        dealt = self._balanced(list(units.values()), lengths, ranks) if self.balance else _evenly(units.values(), ranks)
        return [sorted(rows) for rows in dealt]

    def _balanced(self, units: list[list[int]], lengths: Sequence[int], ranks: int) -> list[list[int]]:
        """Longest unit first, each to the rank that has the fewest tokens."""
        cost = [sum(lengths[row] for row in unit) for unit in units]
        dealt: list[list[int]] = [[] for _ in range(ranks)]
        least = [(0, 0, rank) for rank in range(ranks)]  # a heap of (tokens, rows, rank)
        for unit in sorted(range(len(units)), key=lambda u: -cost[u]):
            tokens, count, rank = least[0]
            dealt[rank] += units[unit]
            heapreplace(least, (tokens + cost[unit], count + len(units[unit]), rank))
        return dealt


def _evenly(units: Any, ranks: int) -> list[list[int]]:
    return [[row for unit in share for row in unit] for share in shares(list(units), ranks)]


def shares(items: Sequence[Any], ranks: int) -> list[Sequence[Any]]:
    """Consecutive pieces of nearly equal size, one per rank."""
    bounds = [len(items) * rank // ranks for rank in range(ranks + 1)]
    return [items[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def join(results: Sequence[Any], dealt: Sequence[Sequence[int]]) -> Any:
    """What the ranks' results are together: batches row by row in the order of the whole, metrics (which are those of
    all ranks already) once, pairs of both likewise."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(join([result[i] for result in results], dealt) for i in range(len(first)))
    if not isinstance(first, Batch):
        return first
    order = torch.tensor([row for rows in dealt for row in rows], dtype=torch.int64)
    return Batch.concat(list(results)).select(order.argsort())
