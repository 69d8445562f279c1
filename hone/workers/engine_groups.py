"""Ranks that share one engine: the first of them drives it, and it computes on the devices of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hone.rollout.interface import Completion, Sampling
from hone.training.ranks import Ranks

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class EngineGroup:
    """Consecutive ranks of one machine, as one of them sees it.

    drives:  whether this rank is the first
    devices: what VISIBLE must be in the engine's processes; None: what it is in this one
    """

    drives: bool = True
    devices: str | None = None

    @classmethod
    def of(cls, size: int, device: torch.device) -> EngineGroup:
        """Collective where `size` is more than 1; it divides the number of ranks of a machine."""
        if size == 1:
            return cls()
        ranks = Ranks()
        first = ranks.rank // size * size
        visible = ranks.gather(os.environ.get(VISIBLE, ""))[first : first + size]
        return cls(ranks.rank == first, ",".join(visible) if device.type == "cuda" else None)


class EngineElsewhere:
    """In the ranks that do not drive: another rank asks the engine for everything, so nothing is left to do here."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        raise RuntimeError("prompts go to the rank that drives this rank's engine")

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """The driving rank has the same weights."""

    async def sleep(self) -> None:
        """The engine sleeps on all devices at once."""

    async def wake(self) -> None:
        """Likewise."""
