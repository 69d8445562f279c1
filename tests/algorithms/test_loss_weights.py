"""The weights of a mini-batch against the formulas, and against how it is laid out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.algorithms import LOSS_AGG_MODES, loss_weights

MASK = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1, 1]).bool()  # trajectories of 4, 1, 1 and 4 tokens
OFFSETS = torch.tensor([0, 4, 5, 6, 10])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", [0, 1 / 6, 1 / 6, 0, 0, 1 / 6, 0, 1 / 6, 1 / 6, 1 / 6]),
        ("token-sum", [0, 1, 1, 0, 0, 1, 0, 1, 1, 1]),
        ("seq-mean-token-sum", [0, 1 / 3, 1 / 3, 0, 0, 1 / 3, 0, 1 / 3, 1 / 3, 1 / 3]),
        ("seq-mean-token-mean", [0, 1 / 6, 1 / 6, 0, 0, 1 / 3, 0, 1 / 9, 1 / 9, 1 / 9]),
        ("seq-mean-token-sum-norm", [0, 1 / 24, 1 / 24, 0, 0, 1 / 24, 0, 1 / 24, 1 / 24, 1 / 24]),
    ],
)
def test_every_mode_is_its_formula_and_counts_only_trajectories_with_trainable_tokens(
    mode: str, expected: list[float]
) -> None:
    weights = loss_weights(MASK, OFFSETS, mode, scale_length=8)
    assert weights.dtype == torch.float32
    assert torch.equal(weights, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_nothing_trainable_weighs_nothing(mode: str) -> None:
    assert torch.equal(loss_weights(torch.zeros(10).bool(), OFFSETS, mode, scale_length=8), torch.zeros(10))
    assert loss_weights(torch.zeros(0).bool(), torch.tensor([0]), mode, scale_length=8).shape == (0,)


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_mean_modes_average_a_constant_to_itself(lengths: list[int], seed: int) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    mask = torch.rand(sum(lengths), generator=torch.Generator().manual_seed(seed)) < 0.5
    for mode in ("token-mean", "seq-mean-token-mean"):
        assert float(loss_weights(mask, offsets, mode).sum()) == pytest.approx(float(mask.any()), abs=1e-6)


def test_an_unknown_mode_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'mean'.*token-mean"):
        loss_weights(MASK, OFFSETS, "mean")


def test_the_norm_mode_asks_for_its_divisor() -> None:
    with pytest.raises(ValueError, match="loss_scale_factor"):
        loss_weights(MASK, OFFSETS, "seq-mean-token-sum-norm")


def test_offsets_that_do_not_cover_the_mask_are_refused() -> None:
    with pytest.raises(ValueError, match="10 tokens"):
        loss_weights(MASK, torch.tensor([0, 4, 9]), "token-mean")
