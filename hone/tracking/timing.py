"""Seconds of the parts of a step, and how near the hardware's limit the update ran."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class Timer:
    """Adds up seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begun

    def metrics(self) -> dict[str, float]:
        return {f"timing_s/{name}": value for name, value in self.seconds.items()}


@dataclass(frozen=True)
class TrainingCost:
    """Floating-point operations of an update.

    parameters:      weights that every token passes through; trained: those of them that are trained
    attention_width: layers * heads * head size
    peak:            operations per second that the hardware reaches
    """

    parameters: int
    trained: int
    attention_width: int
    peak: float

    @classmethod
    def of_ranks(cls, costs: Sequence[TrainingCost]) -> TrainingCost:
        """The same work with the speed of all ranks together."""
        return replace(costs[0], peak=sum(cost.peak for cost in costs))

    def utilisation(self, lengths: Tensor, passes: int, seconds: float) -> float:
        """Share of the peak that `passes` over sequences of these lengths [N] reached (forward and backward).

        4 operations per weight and token, 2 more where it is trained, and 12 * width per pair of tokens, of which
        causal attention needs half.
        """
        tokens, pairs = float(lengths.sum()), float(lengths.double().square().sum()) / 2
        weights = 4 * self.parameters + 2 * self.trained
        return passes * (weights * tokens + 12 * self.attention_width * pairs) / (seconds * self.peak)


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second that a large matrix product reaches here: what `perf/mfu` is relative to.

    Measured rather than looked up, so that it means the same on every CPU and GPU.
    """
    size = 4096 if device.type == "cuda" else 768
    a = torch.ones(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        begun = time.perf_counter()
        (a @ a)[0, 0].item()  # reading a number waits for the device
        best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best
