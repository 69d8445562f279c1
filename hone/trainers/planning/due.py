"""The steps of a run after which something happens, counted and named without being written out: there may be billions.

`due` of hone.trainers.checkpoints says it of one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class DueSteps:
    """Of the steps `done` + 1 to `total`: every multiple of `every`, and the last one.

    every: 0 or less: none of them, and the last one only with `last`
    last:  the last step is one even if `every` is none
    first: the run begins with one, after step `done`
    """

    done: int
    total: int
    every: int
    last: bool = False
    first: bool = False

    def __len__(self) -> int:
        return self.first + len(self._regular) + self._ends_apart

    def __bool__(self) -> bool:  # len() ends at 2**63
        return self.first or self._ends_apart or bool(self._regular)

    def __iter__(self) -> Iterator[int]:
        before, after = [self.done] * self.first, [self.total] * self._ends_apart
        return chain(before, self._regular, after)

    @property
    def newest(self) -> int:
        """The last of them."""
        return self.total if self.total > self.done and (self._ends_apart or self._regular) else self.done

    @property
    def _regular(self) -> range:
        if self.every <= 0:
            return range(0)
        return range((self.done // self.every + 1) * self.every, self.total + 1, self.every)

    @property
    def _ends_apart(self) -> bool:
        """Whether the last step is one for no other reason than that it is the last."""
        return self.total > self.done and (self.last or self.every > 0) and self.total not in self._regular
