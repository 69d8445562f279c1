"""The processes that train one model together, and the few words they exchange beside tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist


class Ranks:
    """A group of ranks; without torch.distributed, one rank alone. Every method but the properties is collective."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    @property
    def size(self) -> int:
        return dist.get_world_size(self.group) if dist.is_initialized() else 1

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group) if dist.is_initialized() else 0

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Entry by entry; a rank may lack some."""
        totals: dict[str, float] = defaultdict(float)
        for one in self.gather(dict(values)):
            for name, value in one.items():
                totals[name] += value
        return dict(totals)

    def barrier(self) -> None:
        self.gather(None)
