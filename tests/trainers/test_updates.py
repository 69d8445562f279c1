"""Mini-batches of an update: how many, of which trajectories, weighed over what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hone.batch import Batch
from hone.trainers.updates import UpdatePlan, run_update
from tests.trainers.ragged import random_batch


def marked(trajectories: int, seed: int = 0) -> Batch:
    """A batch whose rows know their place."""
    batch = random_batch(trajectories, seed=seed).with_rows(place=torch.arange(trajectories))
    return batch.with_tokens(loss_mask=batch["response_mask"].bool())


def plan(**changes: Any) -> UpdatePlan:
    return UpdatePlan(**{"mini_batch": 4, "epochs": 1, "loss_agg_mode": "token-mean", "scale_length": 8, **changes})


@pytest.mark.parametrize(("trajectories", "mini_batch", "epochs"), [(12, 4, 1), (12, 12, 3), (8, 2, 2), (6, 1, 1)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_there_are_batch_over_mini_batch_times_epochs_steps(
    trajectories: int, mini_batch: int, epochs: int, shuffle: bool
) -> None:
    pieces = list(plan(mini_batch=mini_batch, epochs=epochs, shuffle=shuffle).mini_batches(marked(trajectories), 0))
    assert len(pieces) == trajectories // mini_batch * epochs
    assert {len(piece) for piece in pieces} == {mini_batch}
    per_epoch = trajectories // mini_batch
    for epoch in range(epochs):
        rows = torch.cat([piece["place"] for piece in pieces[epoch * per_epoch : (epoch + 1) * per_epoch]])
        assert sorted(rows.tolist()) == list(range(trajectories))


def places(pieces: Any) -> list[int]:
    return torch.cat([piece["place"] for piece in pieces]).tolist()


def test_without_shuffling_mini_batches_are_neighbours_and_with_it_each_pass_has_an_order_of_its_own() -> None:
    batch = marked(8)
    assert places(plan(epochs=2).mini_batches(batch, 3)) == [*range(8), *range(8)]
    shuffled = plan(epochs=2, shuffle=True, seed=5)
    first = places(shuffled.mini_batches(batch, 3))
    assert first[:8] != list(range(8)) and first[:8] != first[8:]
    assert places(shuffled.mini_batches(batch, 3)) == first
    assert places(shuffled.mini_batches(batch, 4)) != first
    assert places(plan(epochs=2, shuffle=True, seed=6).mini_batches(batch, 3)) != first


def weight_by_loop(piece: Batch, mode: str, scale_length: int) -> list[float]:
    """Section "loss aggregation" of the semantics, one token at a time."""
    counts = [int(piece["loss_mask"][a:b].sum()) for a, b in zip(piece.offsets[:-1], piece.offsets[1:])]
    total, sequences = sum(counts), sum(count > 0 for count in counts)
    weights = []
    for row, kept in zip(piece.segment_ids.tolist(), piece["loss_mask"].tolist()):
        weight = {
            "token-mean": 1 / total,
            "token-sum": 1.0,
            "seq-mean-token-sum": 1 / sequences,
            "seq-mean-token-mean": 1 / (sequences * max(counts[row], 1)),
            "seq-mean-token-sum-norm": 1 / (sequences * scale_length),
        }[mode]
        weights.append(weight if kept else 0.0)
    return weights


@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_token_is_weighed_over_the_whole_mini_batch(mode: str, seed: int) -> None:
    for piece in plan(loss_agg_mode=mode, mini_batch=6).mini_batches(marked(12, seed), 0):
        expected = torch.tensor(weight_by_loop(piece, mode, 8))
        torch.testing.assert_close(piece["loss_weight"], expected, rtol=1e-6, atol=0)


class Recorder:
    """A worker group whose steps return what they are told to."""

    size = 1

    def __init__(self, results: list[dict[str, float]]) -> None:
        self.results = results
        self.calls: list[tuple[str, int, int]] = []

    def map(self, method: str, batch: Batch, **arguments: Any) -> dict[str, float]:
        self.calls.append((method, len(batch), arguments["training_step"]))
        return self.results[len(self.calls) - 1]


def test_metrics_are_averaged_over_the_steps_and_skipped_ones_are_counted() -> None:
    group = Recorder([{"pg_loss": 1.0, "nonfinite_steps": 1.0}, {"pg_loss": 3.0, "nonfinite_steps": 1.0}])
    metrics = run_update(group, marked(8), plan(), 7, "actor")  # type: ignore[arg-type]
    assert metrics == {"actor/pg_loss": 2.0, "actor/nonfinite_steps": 2.0}
    assert group.calls == [("update", 4, 7), ("update", 4, 7)]
