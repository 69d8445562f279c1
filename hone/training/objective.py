"""What is minimised, as the engine sees it: outputs and columns of the trained tokens in, a weighted sum out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass
class TokenView:
    """A micro-batch's trained tokens, in order: columns [trained tokens] and the row each belongs to."""

    columns: dict[str, Tensor]
    segment_ids: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns


@dataclass
class Loss:
    """What an objective returns for a micro-batch: the loss summed with its weights, sums to log, means to log."""

    total: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)  # scalars that add up over micro-batches
    means: dict[str, Tensor] = field(default_factory=dict)  # [trained tokens], averaged over the mini-batch's tokens


class Objective(Protocol):
    @property
    def want(self) -> frozenset[str]:
        """Of "logprobs", "entropy", "full_kl", "values"."""
        ...

    def __call__(self, outputs: dict[str, Tensor], batch: TokenView) -> Loss: ...
