"""The clipped value loss against its formula, its gradient, and masked values."""

import math

import pytest
import torch

from hone.algorithms import value_loss


def columns(seed: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(12, generator=g, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_value_loss_is_half_the_larger_of_two_squares(seed: int) -> None:
    values, old_values, returns = columns(seed)
    mask = torch.arange(12) % 3 != 0
    loss, clipped = value_loss(values, old_values, returns, mask, 0.3)
    for i in range(12):
        v, o, r = float(values[i]), float(old_values[i]), float(returns[i])
        plain, bounded = (v - r) ** 2, (min(max(v, o - 0.3), o + 0.3) - r) ** 2
        assert float(loss[i]) == pytest.approx(0.5 * max(plain, bounded) if mask[i] else 0.0)
        assert bool(clipped[i]) == (bool(mask[i]) and bounded > plain)


@pytest.mark.parametrize("seed", range(3))
def test_value_loss_passes_gradcheck(seed: int) -> None:
    values, old_values, returns = columns(seed)
    mask = torch.arange(12) % 3 != 0
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, old_values, returns, mask, 0.3)[0], (values.requires_grad_(),)
    )


@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_values_under_the_mask_reach_neither_loss_nor_gradient(junk: float) -> None:
    mask = torch.arange(12) % 3 != 0
    dirty = [torch.where(mask, column, junk) for column in columns(0)]
    dirty[0].requires_grad_()
    loss, clipped = value_loss(*dirty, mask, 0.3)
    clean_loss, clean_clipped = value_loss(*columns(0), mask, 0.3)
    assert torch.equal(loss, clean_loss) and torch.equal(clipped, clean_clipped)
    assert torch.autograd.grad(loss.sum(), dirty[0])[0].isfinite().all()


def test_unchanged_values_are_never_clipped() -> None:
    values, _, returns = columns(0, torch.float32)
    assert not value_loss(values, values, returns, torch.ones(12).bool(), 0.2)[1].any()
