"""Policy losses: gradients, masked values, extreme ratios, and the same gradient for any cut into micro-batches."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hone.algorithms import (
    POLICY_LOSSES,
    PolicyLossInputs,
    PolicyLossParams,
    clip_cov_selection,
    get_policy_loss,
    kl_cov_selection,
    loss_weights,
)
from tests.algorithms.random_batches import LOSS_NAMES, random_loss_inputs

seeds = st.integers(0, 10_000)
each_loss = pytest.mark.parametrize("name", LOSS_NAMES)
METRICS = {"pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"}


def one_token(name: str, d: float, advantage: float, **params: float) -> tuple[float, dict[str, float]]:
    """Loss and metrics of a single token with old log-prob -30 and new log-prob -30 + d."""
    column = torch.full((1,), -30.0)
    x = PolicyLossInputs(
        column + d, column, torch.tensor([advantage]), torch.tensor([True]), torch.tensor([0]), torch.tensor([True])
    )
    loss, metrics = get_policy_loss(name)(x, PolicyLossParams(**params))
    return float(loss), {key: float(value) for key, value in metrics.items()}


def test_all_losses_of_the_field_are_registered() -> None:
    assert sorted(POLICY_LOSSES) == sorted(LOSS_NAMES)


def test_an_unknown_loss_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'ppo'.*vanilla"):
        get_policy_loss("ppo")


def test_a_dual_clip_of_one_or_less_is_refused() -> None:
    with pytest.raises(ValueError, match="clip_ratio_c"):
        PolicyLossParams(clip_ratio_c=1.0)


SMOOTH = ["vanilla", "sapo", "geo_mean", "gpg", "clip_cov", "kl_cov", "dro"]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_the_derivative_of_the_value(name: str, seed: int) -> None:
    x = random_loss_inputs(seed)

    def loss(logprobs: Tensor) -> Tensor:
        return get_policy_loss(name)(replace(x, logprobs=logprobs), PolicyLossParams())[0]

    assert torch.autograd.gradcheck(loss, (x.logprobs,))


@pytest.mark.parametrize("name", ["gspo", "cispo", "dppo_tv", "dppo_kl"])
@pytest.mark.parametrize("seed", range(4))
def test_a_loss_with_a_stopped_gradient_has_the_gradient_of_its_paper(name: str, seed: int) -> None:
    """Their values are no antiderivative of their gradients, so the gradient is compared with a formula per token."""
    x, p = random_loss_inputs(seed), PolicyLossParams()
    loss, _ = get_policy_loss(name)(x, p)
    grad = torch.autograd.grad(loss.sum(), x.logprobs)[0]
    new, old, A = x.logprobs.detach(), x.old_logprobs, x.advantages
    expected = torch.zeros_like(new)
    for t in x.mask.nonzero().flatten().tolist():
        siblings = x.mask & (x.segment_ids == x.segment_ids[t])
        d, a = float(new[t] - old[t]), float(A[t])
        r = math.exp(d)
        if name == "gspo":
            r = math.exp(float((new - old)[siblings].mean()))
            blocked = (a > 0 and r > 1.2) or (a < 0 and r < 0.8)
            expected[t] = 0.0 if blocked else -a * r
        elif name == "cispo":
            expected[t] = -a * min(max(r, 0.8), 1.2)
        else:
            p_new, p_old = math.exp(float(new[t])), math.exp(float(old[t]))
            kl = p_old * math.log(p_old / p_new) + (1 - p_old) * math.log((1 - p_old) / (1 - p_new))
            divergence = abs(p_new - p_old) if name == "dppo_tv" else kl
            outwards = d > 0 if a > 0 else d < 0
            expected[t] = 0.0 if outwards and divergence > 0.2 else -a * min(r, 3.0)
    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)


@each_loss
@settings(max_examples=25, deadline=None)
@given(seed=seeds, junk=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_values_under_the_mask_reach_neither_loss_nor_gradient(name: str, seed: int, junk: float) -> None:
    x = random_loss_inputs(seed)
    dirty = replace(
        x,
        logprobs=torch.where(x.mask, x.logprobs.detach(), junk).requires_grad_(),
        old_logprobs=torch.where(x.mask, x.old_logprobs, junk),
        advantages=torch.where(x.mask, x.advantages, junk),
    )
    results = []
    for inputs in (x, dirty):
        loss, metrics = get_policy_loss(name)(inputs, PolicyLossParams())
        assert set(metrics) == METRICS
        grad = torch.autograd.grad(loss.sum(), inputs.logprobs)[0]
        results.append(torch.stack([loss.detach(), grad, *metrics.values()]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1][:, ~x.mask], torch.zeros(5, int((~x.mask).sum()), dtype=torch.float64))


@each_loss
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_micro_batches_add_up_to_the_gradient_of_the_mini_batch(name: str, mode: str, seed: int) -> None:
    lengths = (4, 1, 6, 3)
    x = random_loss_inputs(seed, lengths)
    offsets = torch.tensor([0, 4, 5, 11, 14])
    weights = loss_weights(x.mask, offsets, mode).double()

    def gradient(cuts: list[int]) -> Tensor:
        total = torch.zeros(14, dtype=torch.float64)
        for first, last in zip(cuts, cuts[1:]):
            rows = slice(int(offsets[first]), int(offsets[last]))
            assert x.selection is not None
            part = PolicyLossInputs(
                x.logprobs[rows],
                x.old_logprobs[rows],
                x.advantages[rows],
                x.mask[rows],
                x.segment_ids[rows] - first,
                x.selection[rows],
            )
            loss, _ = get_policy_loss(name)(part, PolicyLossParams())
            total += torch.autograd.grad((weights[rows] * loss).sum(), x.logprobs)[0]
        return total

    whole = gradient([0, 4])
    for cuts in ([0, 2, 4], [0, 1, 2, 3, 4]):
        torch.testing.assert_close(gradient(cuts), whole, rtol=1e-10, atol=1e-12)


@each_loss
def test_a_rectangle_gives_what_its_flat_tokens_give(name: str) -> None:
    flat = random_loss_inputs(1, (5, 5, 5))
    columns = ("logprobs", "old_logprobs", "advantages", "mask", "segment_ids", "selection")
    rectangle = replace(flat, **{column: getattr(flat, column).view(3, 5) for column in columns})
    loss, _ = get_policy_loss(name)(flat, PolicyLossParams())
    assert torch.equal(get_policy_loss(name)(rectangle, PolicyLossParams())[0], loss.view(3, 5))


@each_loss
@pytest.mark.parametrize("d", [-1e4, -60.0, 60.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_huge_ratios_give_finite_losses_and_gradients(name: str, d: float, advantage: float) -> None:
    new = torch.full((3,), -1e4 + d).requires_grad_()
    x = PolicyLossInputs(
        new,
        torch.full((3,), -1e4),
        torch.full((3,), advantage),
        torch.ones(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.long),
    )
    loss, metrics = get_policy_loss(name)(x, PolicyLossParams())
    grad = torch.autograd.grad(loss.sum(), new)[0]
    assert torch.stack([loss.detach(), grad, *metrics.values()]).isfinite().all()


@each_loss
def test_no_trainable_token_gives_zero_loss_and_zero_gradient(name: str) -> None:
    x = random_loss_inputs(0)
    x = replace(x, mask=torch.zeros_like(x.mask), selection=None)
    loss, _ = get_policy_loss(name)(x, PolicyLossParams())
    assert torch.equal(loss, torch.zeros_like(loss))
    assert torch.equal(torch.autograd.grad(loss.sum(), x.logprobs)[0], torch.zeros_like(loss))


@each_loss
def test_no_tokens_at_all_give_an_empty_loss(name: str) -> None:
    empty, flags = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    x = PolicyLossInputs(empty, empty, empty, flags, torch.zeros(0, dtype=torch.long))
    assert get_policy_loss(name)(x, PolicyLossParams())[0].shape == (0,)


def test_vanilla_clips_and_dual_clips_where_the_formulas_say() -> None:
    assert one_token("vanilla", math.log(2), 1.0)[0] == pytest.approx(-1.2)
    assert one_token("vanilla", math.log(2), -1.0)[0] == pytest.approx(2.0)
    assert one_token("vanilla", math.log(0.5), -1.0)[0] == pytest.approx(0.8)
    loss, metrics = one_token("vanilla", math.log(5), -2.0)
    assert loss == pytest.approx(6.0)
    assert metrics == {"pg_clipfrac": 0.0, "pg_clipfrac_lower": 1.0, "ppo_kl": pytest.approx(-math.log(5))}
    assert one_token("vanilla", 500.0, 1.0)[1]["ppo_kl"] == -20.0


def test_vanilla_uses_separate_bounds_above_and_below() -> None:
    assert one_token("vanilla", math.log(2), 1.0, clip_ratio_high=0.28)[0] == pytest.approx(-1.28)
    assert one_token("vanilla", math.log(0.5), -1.0, clip_ratio_low=0.4)[0] == pytest.approx(0.6)


def test_gspo_stops_its_ratio_at_e_to_the_ten() -> None:
    assert one_token("gspo", 25.0, -1.0)[0] == pytest.approx(math.exp(10), rel=1e-5)


def test_sapo_is_the_plain_policy_gradient_at_ratio_one() -> None:
    for advantage, tau in ((1.0, 1.0), (-1.0, 1.05)):
        assert one_token("sapo", 0.0, advantage)[0] == pytest.approx(-advantage * 2 / tau)


def test_dppo_stands_still_only_when_a_step_would_lead_further_away() -> None:
    def gradient(d: float, advantage: float) -> float:
        new = torch.tensor([math.log(0.5) + d]).requires_grad_()
        x = PolicyLossInputs(
            new, torch.full((1,), math.log(0.5)), torch.tensor([advantage]), torch.tensor([True]), torch.tensor([0])
        )
        return float(torch.autograd.grad(get_policy_loss("dppo_tv")(x, PolicyLossParams())[0].sum(), new)[0])

    assert gradient(math.log(1.6), 1.0) == 0.0  # p 0.8 against 0.5: beyond 0.2 and going up
    assert gradient(math.log(1.6), -1.0) == pytest.approx(1.6)  # on its way back
    assert gradient(math.log(1.2), 1.0) == pytest.approx(-1.2)  # inside


def test_dppo_kl_is_finite_for_a_token_that_has_become_certain() -> None:
    x = PolicyLossInputs(
        torch.zeros(2), torch.tensor([0.0, -1.0]), torch.ones(2), torch.ones(2, dtype=torch.bool), torch.tensor([0, 1])
    )
    loss, metrics = get_policy_loss("dppo_kl")(x, PolicyLossParams())
    assert loss.isfinite().all()
    assert metrics["pg_clipfrac"].tolist() == [0.0, 1.0]


def test_dro_is_least_where_the_log_ratio_is_the_advantage_over_tau() -> None:
    at = {d: one_token("dro", d, 1.0, ppo_kl_coef=2.0)[0] for d in (0.4, 0.5, 0.6)}
    assert at[0.5] < min(at[0.4], at[0.6])
    assert at[0.5] == pytest.approx(-0.25)


def test_kl_cov_selects_the_tokens_of_highest_covariance() -> None:
    logprobs = torch.tensor([-5.0, -1.0, -1.0, -5.0, 9.0])
    advantages = torch.tensor([-4.0, 1.0, 1.0, 1.0, 99.0])
    mask = torch.tensor([True, True, True, True, False])
    chosen = kl_cov_selection(logprobs, advantages, mask, PolicyLossParams(kl_cov_ratio=0.25))
    assert chosen.tolist() == [True, False, False, False, False]


def test_clip_cov_draws_its_share_from_the_covariance_band() -> None:
    g = torch.Generator().manual_seed(0)
    logprobs, advantages = torch.randn(4000, generator=g), torch.randn(4000, generator=g)
    mask = torch.rand(4000, generator=g) < 0.5
    p = PolicyLossParams(clip_cov_ratio=0.01)
    chosen = clip_cov_selection(logprobs, advantages, mask, p, torch.Generator().manual_seed(1))
    covariance = (logprobs - logprobs[mask].mean()) * (advantages - advantages[mask].mean())
    assert int(chosen.sum()) == int(0.01 * int(mask.sum()))
    assert ((covariance[chosen] > 1.0) & (covariance[chosen] < 5.0) & mask[chosen]).all()
    assert torch.equal(chosen, clip_cov_selection(logprobs, advantages, mask, p, torch.Generator().manual_seed(1)))
    assert not torch.equal(chosen, clip_cov_selection(logprobs, advantages, mask, p, torch.Generator().manual_seed(2)))


def test_clip_cov_takes_the_selected_tokens_out_of_the_gradient() -> None:
    x = random_loss_inputs(0)
    assert x.selection is not None
    loss, metrics = get_policy_loss("clip_cov")(x, PolicyLossParams())
    grad = torch.autograd.grad(loss.sum(), x.logprobs)[0]
    assert torch.equal(grad[x.selection], torch.zeros(int(x.selection.sum()), dtype=torch.float64))
    assert torch.equal(metrics["pg_clipfrac"].bool(), x.selection & x.mask)


def test_kl_cov_without_a_selection_computes_it_from_the_tokens_given() -> None:
    x, p = random_loss_inputs(2), PolicyLossParams(kl_cov_ratio=0.3)
    selection = kl_cov_selection(x.logprobs, x.advantages, x.mask, p)
    assert selection.any()
    own = get_policy_loss("kl_cov")(replace(x, selection=None), p)[0]
    assert torch.equal(own, get_policy_loss("kl_cov")(replace(x, selection=selection), p)[0])
