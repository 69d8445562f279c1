"""Whitening of large batches goes block by block and cannot show it."""

from __future__ import annotations

import pytest
import torch

from hone.algorithms import masking
from hone.algorithms.masking import masked_whiten, masked_whiten_


@pytest.mark.parametrize("shape", [(7, 5), (64,), (0, 3), (1, 1)])
@pytest.mark.parametrize("block", [1, 8, 1 << 20])
def test_any_size_of_block_gives_the_mean_and_spread_of_the_whole(
    shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    x, mask = torch.randn(shape, generator=generator) + 3, torch.rand(shape, generator=generator) > 0.4
    spoiled = torch.where(mask, x, torch.nan)
    chosen = x[mask].double()
    variance = chosen.var() if len(chosen) > 1 else torch.zeros(())
    expected = torch.where(mask, (x.double() - chosen.mean()) / (variance + 1e-8).sqrt(), 0.0).float()
    kept = spoiled.clone()
    torch.testing.assert_close(masked_whiten(spoiled, mask), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(spoiled.nan_to_num(9.0), kept.nan_to_num(9.0))  # the argument stays as it was
    in_place = masked_whiten_(spoiled, mask)
    assert in_place is spoiled
    torch.testing.assert_close(in_place, expected, rtol=1e-5, atol=1e-6)
