"""Roles and where they run: a trainer speaks to worker groups and never knows whether Ray stands behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hone.batch import Batch


@dataclass(frozen=True)
class Role:
    """How to build one role in a process: `cls(**arguments, peers=...)`.

    `peers` are the roles built before it in the same process, by name, so that roles of one pool can share weights.
    `ranks_per_share` consecutive ranks get the same share of a batch, and return the same results; what is streamed
    goes to the first of them alone.
    """

    cls: type
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ranks_per_share: int = 1

    def build(self, peers: Mapping[str, Any]) -> Any:
        return self.cls(**self.arguments, peers=peers)


class WorkerGroup(Protocol):
    """All ranks of one role."""

    size: int

    def map(self, method: str, batch: Batch, **arguments: Any) -> Any:
        """Splits the batch over data-parallel ranks and joins the results in the batch's order.

        Workers return a Batch of the same rows, or metrics that are already those of all ranks, or a pair of both.
        """
        ...

    def call(self, method: str, **arguments: Any) -> list[Any]:
        """Runs the method on every rank with the same arguments; one result per rank."""
        ...

    def stream(self, method: str, items: Sequence[Any], **arguments: Any) -> Iterator[Any]:
        """Deals the items to ranks and yields what they yield, as it comes."""
        ...


class Executor(Protocol):
    """Starts the processes of a run and holds its groups."""

    def device(self, wanted: str) -> torch.device:
        """Where the models of the run will be, of trainer.device's auto, cpu or cuda. Asked before `start`, which
        places the ranks accordingly."""
        ...

    def start(self, roles: Mapping[str, Role]) -> Mapping[str, WorkerGroup]: ...

    def shutdown(self) -> None: ...
