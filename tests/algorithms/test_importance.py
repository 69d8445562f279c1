"""Importance weights against loops over trajectories, and the diagnostics against closed forms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hone.algorithms import diagnostics, importance, importance_weights
from hone.algorithms.importance import LEVELS

SEGMENTS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])


def random_logprobs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(9, generator=g) * 3
    return rollout + 0.5 * torch.randn(9, generator=g), rollout, torch.rand(9, generator=g) < 0.7


def weigh(old: Tensor, rollout: Tensor, mask: Tensor, **options) -> tuple[Tensor, Tensor]:
    settings_ = {"level": "token", "mode": "none", "threshold": None, "threshold_lower": None, "veto_threshold": None}
    return importance_weights(old, rollout, mask, SEGMENTS[: len(old)], **(settings_ | options))


def weights_by_loop(old: Tensor, rollout: Tensor, mask: Tensor, level: str) -> Tensor:
    q, weights = (old - rollout).double(), torch.zeros(9)
    for t in mask.nonzero().flatten().tolist():
        siblings = q[mask & (SEGMENTS[t] == SEGMENTS)]
        exponent = {"token": q[t], "sequence": siblings.sum(), "geometric": siblings.mean()}[level]
        weights[t] = exponent.exp()
    return weights


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_levels_and_modes_are_the_formulas_of_a_loop(level: str, seed: int) -> None:
    old, rollout, mask = random_logprobs(seed)
    raw = weights_by_loop(old, rollout, mask, level)
    for mode in ("none", "veto"):
        weights, keep = weigh(old, rollout, mask, level=level, mode=mode, threshold=1.1)
        torch.testing.assert_close(weights, raw)
        assert torch.equal(keep, mask)
    weights, keep = weigh(old, rollout, mask, level=level, mode="truncate", threshold=1.1)
    torch.testing.assert_close(weights, raw.clamp(max=1.1))
    assert torch.equal(keep, mask)
    for lower in (None, 0.8):
        weights, keep = weigh(old, rollout, mask, level=level, mode="mask", threshold=1.5, threshold_lower=lower)
        inside = mask & (raw >= (lower or 1 / 1.5)) & (raw <= 1.5)
        assert torch.equal(keep, inside)
        torch.testing.assert_close(weights, torch.where(inside, raw, 0.0))


@pytest.mark.parametrize("mode", ["none", "veto", "truncate", "mask"])
def test_one_catastrophic_token_removes_its_whole_trajectory(mode: str) -> None:
    rollout = torch.full((9,), -1.0)
    old = rollout.clone()
    old[4] -= 8.0
    weights, keep = weigh(old, rollout, torch.ones(9).bool(), mode=mode, threshold=1e9, veto_threshold=1e-3)
    assert keep.tolist() == [True] * 3 + [False] * 2 + [True] * 4
    assert torch.equal(weights, keep.float())


def test_a_catastrophic_token_under_the_mask_removes_nothing() -> None:
    rollout = torch.full((9,), -1.0)
    old = rollout.clone()
    old[4] = -math.inf
    mask = torch.arange(9) != 4
    _, keep = weigh(old, rollout, mask, mode="veto", veto_threshold=1e-3)
    assert torch.equal(keep, mask)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_values_under_the_mask_change_nothing(level: str, junk: float) -> None:
    old, rollout, mask = random_logprobs(1)
    dirty = torch.where(mask, old, junk), torch.where(mask, rollout, junk)
    options = {"level": level, "threshold": 1.1}
    clean_result = weigh(old, rollout, mask, mode="truncate", veto_threshold=0.1, **options)
    dirty_result = weigh(*dirty, mask, mode="truncate", veto_threshold=0.1, **options)
    assert all(torch.equal(a, b) for a, b in zip(clean_result, dirty_result))
    assert diagnostics(*dirty, mask, SEGMENTS, **options) == diagnostics(old, rollout, mask, SEGMENTS, **options)


def test_weights_are_finite_however_far_apart_the_log_probs_are() -> None:
    for level in ("token", "sequence", "geometric"):
        weights, _ = weigh(torch.zeros(9), torch.full((9,), -1e4), torch.ones(9).bool(), level=level)
        torch.testing.assert_close(weights, torch.full((9,), math.exp(20.0)))


def test_weights_carry_no_gradient() -> None:
    old, rollout, mask = random_logprobs(0)
    assert not weigh(old.requires_grad_(), rollout, mask)[0].requires_grad


def test_unknown_levels_and_modes_are_named() -> None:
    with pytest.raises(ValueError, match="rollout_is_level 'word'.*geometric"):
        weigh(*random_logprobs(0), level="word")
    with pytest.raises(ValueError, match="rollout_is_mode 'clip'.*truncate"):
        weigh(*random_logprobs(0), mode="clip")


def test_diagnostics_are_their_closed_forms() -> None:
    q = torch.tensor([0.5, -0.5, 0.0, 9.0, 0.2])
    rollout = torch.full((5,), -2.0)
    mask = torch.tensor([True, True, True, False, True])
    segments = torch.tensor([0, 0, 1, 1, 1])
    numbers = diagnostics(rollout + q, rollout, mask, segments, threshold=1.3, threshold_lower=0.9)
    x = [0.5, -0.5, 0.0, 0.2]
    w = [math.exp(v) for v in x]
    difference = torch.tensor([abs(math.exp(-2 + v) - math.exp(-2)) for v in x])
    expected = {
        "rollout_corr/kl": -0.05,
        "rollout_corr/k3_kl": sum(math.exp(v) - v - 1 for v in x) / 4,
        "rollout_corr/ppl_ratio": (math.exp(0.0) + math.exp(-0.1)) / 2,
        "rollout_corr/chi2_token": sum(v * v for v in w) / 4 - 1,
        "rollout_corr/ess": sum(w) ** 2 / (4 * sum(v * v for v in w)),
        "rollout_corr/share_above": 0.25,
        "rollout_corr/share_below": 0.25,
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_std": float(difference.std()),
    }
    assert numbers == pytest.approx(expected, rel=1e-5)


def test_diagnostics_of_a_sequence_level_count_trajectories() -> None:
    q = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    numbers = diagnostics(
        q - 1, torch.full((9,), -1.0), torch.ones(9).bool(), SEGMENTS, level="sequence", threshold=2.0
    )
    e = math.e
    assert numbers["rollout_corr/ess"] == pytest.approx((e + 2) ** 2 / (3 * (e * e + 2)))
    assert numbers["rollout_corr/share_above"] == pytest.approx(1 / 3)


def test_diagnostics_of_one_token_are_finite_and_of_none_are_absent() -> None:
    old, rollout, mask = random_logprobs(0)
    single = torch.arange(9) == 4
    assert all(math.isfinite(value) for value in diagnostics(old, rollout, single, SEGMENTS).values())
    assert diagnostics(old, rollout, torch.zeros(9).bool(), SEGMENTS) == {}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("seed", range(3))
def test_diagnostics_are_the_same_however_they_are_cut_into_blocks(
    level: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 30, (20,), generator=generator)
    segments = torch.repeat_interleave(torch.arange(20), lengths)
    mask = (torch.rand(len(segments), generator=generator) < 0.7) & (segments != 3) & (segments < 18)
    rollout = -torch.rand(len(segments), generator=generator)
    old = rollout + 0.3 * torch.randn(len(segments), generator=generator)
    whole = diagnostics(old, rollout, mask, segments, level=level, threshold=1.2, threshold_lower=0.9)
    monkeypatch.setattr(importance, "BLOCK", 7)
    assert diagnostics(old, rollout, mask, segments, level=level, threshold=1.2, threshold_lower=0.9) == pytest.approx(
        whole, rel=1e-9
    )
    difference = (old[mask].double().exp() - rollout[mask].double().exp()).abs()
    assert whole["training/rollout_probs_diff_std"] == pytest.approx(float(difference.std()), rel=1e-9)
