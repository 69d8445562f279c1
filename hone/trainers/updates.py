"""Cuts a step's trajectories into mini-batches, weighs every token over the whole mini-batch, and steps the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hone.algorithms import loss_weights
from hone.batch import Batch
from hone.cluster import WorkerGroup

Selector = Callable[[Batch, torch.Generator], Tensor]


@dataclass(frozen=True)
class UpdatePlan:
    """How a step's trajectories are used.

    mini_batch:   trajectories per optimiser step, over all ranks
    scale_length: what seq-mean-token-sum-norm divides by
    selector:     picks tokens among those of a whole mini-batch, bool [tokens], for losses that treat a few differently
    """

    mini_batch: int
    epochs: int
    loss_agg_mode: str
    scale_length: int
    shuffle: bool = False
    seed: int = 0
    selector: Selector | None = None

    def sizes(self, trajectories: int) -> list[int]:
        """Trajectories of each mini-batch of an epoch: one optimiser step each."""
        return [min(self.mini_batch, trajectories - begin) for begin in range(0, trajectories, self.mini_batch)]

    def mini_batches(
        self, batch: Batch, training_step: int, current: Callable[[Batch], Tensor] | None = None
    ) -> Iterator[Batch]:
        """(trajectories / mini_batch) * epochs pieces, each with its `loss_weight` column, and `selection` if any.

        current: log-probs of the policy as it is when a piece is asked for; None: those of the start of the step count
        """
        moved = False  # the first piece sees the policy that computed the old log-probs
        for epoch in range(self.epochs):
            order = torch.arange(len(batch))
            generator = torch.Generator().manual_seed(self.seed + 1_000_003 * training_step + epoch)
            if self.shuffle:
                order = torch.randperm(len(batch), generator=generator)
            for rows in order.split(self.sizes(len(batch))):
                piece = batch.select(rows) if self.shuffle else batch.slice(int(rows[0]), int(rows[-1]) + 1)
                yield self._selected(self._weighed(piece), generator, current if moved else None)
                moved = True

    def _weighed(self, mini_batch: Batch) -> Batch:
        weights = loss_weights(
            mini_batch["loss_mask"], mini_batch.offsets, self.loss_agg_mode, scale_length=self.scale_length
        )
        return mini_batch.with_tokens(loss_weight=weights)

    def _selected(
        self, mini_batch: Batch, generator: torch.Generator, current: Callable[[Batch], Tensor] | None
    ) -> Batch:
        if self.selector is None:
            return mini_batch
        seen = mini_batch if current is None else mini_batch.with_tokens(old_logprobs=current(mini_batch))
        return mini_batch.with_tokens(selection=self.selector(seen, generator))


def run_on_policy_update(
    group: WorkerGroup, batch: Batch, plan: UpdatePlan, training_step: int, prefix: str
) -> tuple[Batch, dict[str, float]]:
    """The single optimiser step of a training step, whose own forward pass gives the old log-probs: the batch with
    them, and metrics."""
    (mini_batch,) = plan.mini_batches(batch, training_step)
    columns, metrics = group.map("update_on_policy", mini_batch, training_step=training_step)
    return mini_batch.with_tokens(**columns.tokens), {f"{prefix}/{name}": value for name, value in metrics.items()}


def run_update(group: WorkerGroup, batch: Batch, plan: UpdatePlan, training_step: int, prefix: str) -> dict[str, float]:
    """All optimiser steps of a training step; metrics are averaged over them, skipped steps are counted."""
    totals: dict[str, float] = defaultdict(float)
    steps = 0

    def current(mini_batch: Batch) -> Tensor:
        logprobs: Tensor = group.map("compute_logprobs", mini_batch)["old_logprobs"]
        return logprobs

    for mini_batch in plan.mini_batches(batch, training_step, current):
        for name, value in group.map("update", mini_batch, training_step=training_step).items():
            totals[name] += value
        steps += 1
    skipped = totals.pop("nonfinite_steps", 0.0)
    means = {f"{prefix}/{name}": value / max(steps, 1) for name, value in totals.items()}
    return {**means, f"{prefix}/nonfinite_steps": skipped}
