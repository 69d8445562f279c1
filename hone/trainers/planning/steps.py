"""How long a run is, and after which steps it validates and saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.data.files import read_rows
from hone.data.order import BatchOrder
from hone.data.prompts import choose_rows
from hone.trainers.checkpoints import Checkpoints, read_state
from hone.trainers.planning.due import DueSteps


@dataclass(frozen=True)
class Steps:
    """rows, validation_rows: that are used; done: steps behind the checkpoint that the run goes on from
    validations, saves: steps after which they happen; 0: before the first step
    """

    rows: int
    validation_rows: int
    steps_per_epoch: int
    total: int
    done: int
    validations: DueSteps
    saves: DueSteps

    @property
    def left(self) -> int:
        return max(self.total - self.done, 0)

    @property
    def epochs(self) -> float:
        return self.total / self.steps_per_epoch


def count_rows(files: str | Sequence[str], max_samples: int) -> int:
    """Rows that are used where none is dropped for its length. Which they are makes no difference."""
    return len(choose_rows(len(read_rows(files)), max_samples=max_samples, shuffle=False, seed=0))


def order_of(rows: int, batch: int) -> BatchOrder:
    return BatchOrder(rows, batch, seed=0, shuffle=False)


def steps_done(directory: str, mode: str, path: str | None) -> int:
    """Steps behind the checkpoint that the run will resume from."""
    folder = Checkpoints(Path(directory).expanduser()).find(mode, path)
    return 0 if folder is None else int(read_state(folder)["step"])
