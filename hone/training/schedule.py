"""Learning-rate schedules as one pure function of the training step."""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEDULES = ("constant", "cosine", "linear", "wsd")


@dataclass(frozen=True)
class Schedule:
    """Counts training steps, one tick a step, and reaches its last value exactly at the last step.

    kind:       constant; cosine and linear fall from 1 to `min_ratio`; wsd (warm-up, stable, decay) keeps 1 and falls
                along a cosine over the last `decay_ratio` of the steps
    num_cycles: of the cosine; 0.5 is one fall, 1.5 falls, rises and falls again
    """

    kind: str = "constant"
    total_steps: int = 1
    warmup_steps: int = 0
    min_ratio: float = 0.0
    num_cycles: float = 0.5
    decay_ratio: float = 0.1

    def factor(self, step: int) -> float:
        """The multiple of the peak learning rate at training step `step` (from 0). Warm-up rises 1/W, 2/W, ... 1."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        first = max(self.warmup_steps - 1, 0)
        span = max(self.total_steps - 1 - first, 1)
        progress = min((step - first) / span, 1.0)
        if self.kind == "wsd":
            progress = max(0.0, (progress - 1 + self.decay_ratio) / self.decay_ratio)
        if self.kind == "linear":
            return self.min_ratio + (1 - self.min_ratio) * (1 - progress)
        if self.kind in ("cosine", "wsd"):
            cycles = self.num_cycles if self.kind == "cosine" else 0.5
            return self.min_ratio + (1 - self.min_ratio) * 0.5 * (1 + math.cos(2 * math.pi * cycles * progress))
        return 1.0


def warmup_steps(steps: int, ratio: float, total_steps: int) -> int:
    """`steps` when it is not negative, else the given share of all steps (rounded down)."""
    return steps if steps >= 0 else int(ratio * total_steps)
