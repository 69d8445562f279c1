"""Seconds by name, and the share of the hardware's peak."""

from __future__ import annotations

import time

import pytest
import torch

from hone.tracking.timing import Timer, TrainingCost, measured_peak_flops


def test_seconds_of_a_name_add_up_also_when_the_block_fails() -> None:
    timer = Timer()
    with timer("a"):
        time.sleep(0.01)
    with pytest.raises(ValueError), timer("a"):
        time.sleep(0.01)
        raise ValueError
    assert timer.metrics().keys() == {"timing_s/a"}
    assert 0.02 <= timer.metrics()["timing_s/a"] < 1.0


@pytest.mark.parametrize(("trained", "weights"), [(1000, 6 * 1000), (10, 4 * 1000 + 2 * 10)])
def test_utilisation_counts_six_operations_per_trained_weight_and_token_and_half_of_the_token_pairs(
    trained: int, weights: int
) -> None:
    cost = TrainingCost(parameters=1000, trained=trained, attention_width=8, peak=1e6)
    operations = weights * 5 + 12 * 8 * (3 * 3 + 2 * 2) / 2
    assert cost.utilisation(torch.tensor([3, 2]), passes=2, seconds=0.5) == pytest.approx(2 * operations / 0.5e6)


def test_ranks_are_as_fast_as_all_of_them_together() -> None:
    costs = [TrainingCost(parameters=1000, trained=10, attention_width=8, peak=peak) for peak in (1e6, 3e6)]
    lengths = torch.tensor([3, 2])
    alone = costs[0].utilisation(lengths, passes=1, seconds=1.0)
    assert TrainingCost.of_ranks(costs).utilisation(lengths, passes=1, seconds=1.0) == pytest.approx(alone / 4)


def test_the_measured_peak_is_a_plausible_number() -> None:
    assert 1e8 < measured_peak_flops(torch.device("cpu"), torch.float32) < 1e14
