"""One rank in the driver's own process: no Ray, and a debugger works."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hone.batch import Batch
from hone.cluster.interface import Role, WorkerGroup
from hone.models.precision import pick_device


class LocalGroup:
    size = 1

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def map(self, method: str, batch: Batch, **arguments: Any) -> Any:
        return getattr(self.worker, method)(batch, **arguments)

    def call(self, method: str, **arguments: Any) -> list[Any]:
        return [getattr(self.worker, method)(**arguments)]

    def stream(self, method: str, items: Sequence[Any], **arguments: Any) -> Iterator[Any]:
        yield from getattr(self.worker, method)(items, **arguments)


class LocalExecutor:
    def device(self, wanted: str) -> torch.device:
        return pick_device(wanted)

    def start(self, roles: Mapping[str, Role]) -> Mapping[str, WorkerGroup]:
        workers: dict[str, Any] = {}
        for name, role in roles.items():
            workers[name] = role.build(workers)
        gc.collect()
        gc.freeze()  # full collections pass over all that is here by now: half a second each
        return {name: LocalGroup(worker) for name, worker in workers.items()}

    def shutdown(self) -> None:
        """Nothing runs outside the driver."""
        gc.unfreeze()
