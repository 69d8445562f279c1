"""What a plan says of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from hone.trainers.planning.disk import Disk
from hone.trainers.planning.machine import Machine
from hone.trainers.planning.memory import Held, Phase, largest
from hone.trainers.planning.passes import Pass
from hone.trainers.planning.steps import Steps

TIGHT = 0.9  # share of the memory above which an allocator's gaps may be too much


@dataclass(frozen=True)
class Update:
    """Of one training step. mini_batch: sequences of an optimiser step, over all ranks; share: of the rank with most

    total: optimiser steps of the run; warmup: training steps until the learning rate is at its highest
    """

    mini_batch: int
    mini_batches: int
    epochs: int
    share: Pass
    total: int
    warmup: int

    @property
    def optimizer_steps(self) -> int:
        return self.mini_batches * self.epochs


@dataclass(frozen=True)
class Batches:
    """Of one training step: rows of the data, sequences made of them, and bounds of their tokens."""

    rows: int
    sequences: int
    fewest_tokens: int
    most_tokens: int
    most_trained: int


@dataclass(frozen=True)
class Places:
    """Which roles live where: every rank holds all of `roles`; `driver` is the command's own process.

    shard_groups, sequence_groups: of a role, ranks that hold its weights, or compute a sequence, together
    """

    nodes: int
    ranks_per_node: int
    roles: list[str]
    driver: list[str]
    shard_groups: dict[str, int] = field(default_factory=dict)
    sequence_groups: dict[str, int] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class Plan:
    """passes: of a training step beside the updates, by what they compute"""

    command: str
    machine: Machine
    places: Places
    steps: Steps
    batches: Batches
    updates: dict[str, Update]
    passes: dict[str, Pass]
    models: tuple[Held, ...]
    phases: tuple[Phase, ...]
    disk: Disk
    remarks: list[str] = field(default_factory=list)

    @property
    def largest(self) -> Phase:
        return largest(self.phases)

    @property
    def needed(self) -> int:
        """Bytes of the device of a rank, or of a CPU machine with all of its ranks."""
        rank = self.largest.peak + self.machine.process
        if self.machine.kind == "cuda":
            return rank
        driver = self.machine.process if self.places.ranks > 1 else 0
        return rank * self.places.ranks_per_node + driver

    @property
    def host_needed(self) -> int:
        """Bytes of CPU memory that a machine's ranks keep what is offloaded in."""
        return max(phase.host_peak for phase in self.phases) * self.places.ranks_per_node

    @property
    def fits(self) -> bool | None:
        """None: it is not known how much memory there is."""
        return None if self.machine.memory is None else self.needed <= self.machine.memory

    @property
    def tight(self) -> bool:
        return bool(self.fits) and self.needed > TIGHT * (self.machine.memory or 0)
