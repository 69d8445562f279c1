"""Which row is in which slot of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hone.rollout.hf.parked import Parked
from hone.rollout.hf.request import Request

Moves = list[tuple[int, int]]  # (from slot, to slot), all at once


class Slots:
    """Running rows are in the slots 0 .. running - 1, as decoding reads them. In the others, in any order, are rows
    whose prompts are being computed, finished rows that are parked, and nothing.

    Parked rows only take slots that nobody needs: a new row takes an empty slot, else that of the oldest of them, and
    another slot only where there is neither.
    """

    def __init__(self) -> None:
        self.rows: list[Request | None] = []
        self.running = 0
        self.parked = Parked()

    @property
    def running_rows(self) -> list[Request]:
        return self.rows[: self.running]  # type: ignore[return-value]  # none of these is empty

    def enter(self, rows: Iterable[Request]) -> None:
        """Gives each of the rows a slot, to compute its prompt in."""
        empty = (slot for slot in range(self.running, len(self.rows)) if self.rows[slot] is None)
        for row in rows:
            row.slot = next(empty, -1)
            if row.slot < 0 and len(self.parked):
                row.slot = self._unpark(self.parked.oldest())
            elif row.slot < 0:
                row.slot = len(self.rows)
                self.rows.append(None)
            self.rows[row.slot] = row

    def take_over(self, row: Request, parked: Request) -> None:
        """Gives the row the slot of a parked one, whose keys and values it goes on from."""
        row.slot = self._unpark(parked)
        self.rows[row.slot] = row

    def start(self, rows: Iterable[Request]) -> Moves:
        """Rows whose prompts are computed run from now on."""
        origins: dict[Request, int] = {}
        for row in rows:
            self._swap(row.slot, self.running, origins)
            self.running += 1
        return _moves(origins)

    def stop(self, rows: Sequence[Request]) -> Moves:
        """Running rows leave the others, and keep their data."""
        origins: dict[Request, int] = {}
        for row in sorted(rows, key=lambda row: -row.slot):
            self.running -= 1
            self._swap(row.slot, self.running, origins)
        return _moves(origins)

    def park(self, row: Request) -> None:
        """For a row that does not run and whose data is whole."""
        same = self.parked.add(row)
        if same is not None:
            self.leave(same)

    def leave(self, row: Request) -> None:
        """For a row that does not run."""
        self.rows[row.slot] = None
        row.slot = -1

    def clear_parked(self) -> None:
        for row in list(self.parked):
            self.rows[self._unpark(row)] = None

    def _unpark(self, row: Request) -> int:
        self.parked.remove(row)
        slot, row.slot = row.slot, -1
        return slot

    def _swap(self, slot: int, other: int, origins: dict[Request, int]) -> None:
        self.rows[slot], self.rows[other] = self.rows[other], self.rows[slot]
        for place in (slot, other):
            row = self.rows[place]
            if row is not None:
                origins.setdefault(row, row.slot)
                row.slot = place


def _moves(origins: dict[Request, int]) -> Moves:
    return [(origin, row.slot) for row, origin in origins.items() if origin != row.slot]
