"""KL estimators, the exact KL and the controllers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hone.algorithms import (
    KL_KINDS,
    AdaptiveKL,
    FixedKL,
    PolicyLossInputs,
    PolicyLossParams,
    full_kl,
    get_policy_loss,
    kl_estimate,
)

CLOSED_FORMS = {
    "kl": lambda x: x,
    "k1": lambda x: x,
    "abs": abs,
    "mse": lambda x: x * x / 2,
    "k2": lambda x: x * x / 2,
    "low_var_kl": lambda x: math.exp(-x) + x - 1,
    "k3": lambda x: math.exp(-x) + x - 1,
}


def test_every_kind_exists_with_and_without_the_gradient_of_k2() -> None:
    assert set(KL_KINDS) == {*CLOSED_FORMS, *(f"{kind}+" for kind in CLOSED_FORMS), "full"}


@pytest.mark.parametrize("kind", CLOSED_FORMS)
@settings(max_examples=30, deadline=None)
@given(x=st.floats(-2.0, 5.0))
def test_an_estimate_is_its_closed_form(kind: str, x: float) -> None:
    logprobs = torch.tensor([x - 1.0], dtype=torch.float64)
    reference = torch.tensor([-1.0], dtype=torch.float64)
    for spelled in (kind, f"{kind}+"):
        assert float(kl_estimate(logprobs, reference, spelled)) == pytest.approx(CLOSED_FORMS[kind](x), abs=1e-9)


@pytest.mark.parametrize("kind", CLOSED_FORMS)
def test_the_gradient_of_an_estimate_is_its_derivative(kind: str) -> None:
    new = torch.tensor([-3.0, -1.2, -0.5, -0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0, -1.0, -2.0, -0.3], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, reference, kind), (new,))


@pytest.mark.parametrize("kind", CLOSED_FORMS)
def test_a_plus_takes_the_gradient_of_k2(kind: str) -> None:
    new = torch.tensor([-3.0, -1.2, 40.0], requires_grad=True)
    reference = torch.tensor([-1.0, -1.0, -2.0])
    grad = torch.autograd.grad(kl_estimate(new, reference, f"{kind}+").sum(), new)[0]
    torch.testing.assert_close(grad, (new - reference).detach())


def expected_gradient(kind: str, policy: Tensor, reference: Tensor) -> Tensor:
    """The gradient of an estimate at the logits, averaged exactly over the tokens that the policy may sample."""
    logits = policy.clone().requires_grad_()
    estimates = kl_estimate(logits.log_softmax(-1), reference.log_softmax(-1), kind)
    return torch.autograd.grad((policy.softmax(-1) * estimates).sum(), logits)[0]


@pytest.mark.parametrize("seed", range(5))
def test_in_expectation_k2_and_every_plus_take_the_gradient_of_the_kl_and_k1_takes_none(seed: int) -> None:
    policy, reference = torch.randn(2, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 2
    logits = policy.clone().requires_grad_()
    log_p, log_q = logits.log_softmax(-1), reference.log_softmax(-1)
    forward = torch.autograd.grad((log_p.exp() * (log_p - log_q)).sum(), logits)[0]
    for kind in ("k2", "mse", "k1+", "k2+", "k3+", "abs+"):
        torch.testing.assert_close(expected_gradient(kind, policy, reference), forward, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(expected_gradient("k1", policy, reference), torch.zeros_like(policy), rtol=0, atol=1e-12)
    reverse = policy.softmax(-1) - reference.softmax(-1)  # the gradient of KL(reference || policy)
    torch.testing.assert_close(expected_gradient("k3", policy, reference), reverse, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rounding", [0.0, 1e-7, -3e-6])
def test_a_policy_that_has_not_moved_gets_no_gradient_from_rounding(rounding: float) -> None:
    """The derivative of |x| at 0 is not the sign of what two ways to compute the same log-prob differ by."""
    reference = torch.full((3,), -0.7, dtype=torch.float64)
    for kind in CLOSED_FORMS.keys() - {"kl", "k1"}:
        new = (reference + rounding).requires_grad_()
        estimate = kl_estimate(new, reference, kind)
        assert torch.autograd.grad(estimate.sum(), new)[0].abs().max() < 1e-5
        assert float(estimate.detach().max()) == pytest.approx(CLOSED_FORMS[kind](rounding), abs=1e-15)
    new, every = (reference + rounding).requires_grad_(), torch.ones(3, dtype=torch.bool)
    inputs = PolicyLossInputs(new, reference, torch.ones_like(reference), every, torch.arange(3))
    loss, _ = get_policy_loss("kl_cov")(inputs, PolicyLossParams(kl_cov_ratio=1.0))
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), new)[0], -(new - reference).exp().detach())


def test_k3_is_bounded_far_away() -> None:
    new = torch.tensor([-1e4, 1e4])
    assert kl_estimate(new, torch.zeros(2), "k3").tolist() == [10.0, 10.0]


def test_the_full_kl_is_refused_where_only_log_probs_are_known() -> None:
    with pytest.raises(ValueError, match="distributions"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "full")
    with pytest.raises(ValueError, match="'k4'.*low_var_kl"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")


def random_heads(tokens: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(tokens)
    shapes = ((tokens, hidden), (vocabulary, hidden), (tokens, hidden + 1), (vocabulary, hidden + 1))
    return [torch.randn(*shape, generator=g, dtype=dtype) for shape in shapes]


def dense_kl(hidden: Tensor, head: Tensor, ref_hidden: Tensor, ref_head: Tensor, temperature: float) -> Tensor:
    log_p = torch.log_softmax(hidden @ head.t() / temperature, dim=-1)
    log_q = torch.log_softmax(ref_hidden @ ref_head.t() / temperature, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize("tokens", [0, 1, 7, 16])
@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_chunked_kl_is_the_dense_kl_with_its_gradients(tokens: int, chunk: int, temperature: float) -> None:
    hidden, head, ref_hidden, ref_head = random_heads(tokens, 5, 11, torch.float64)
    upstream = torch.linspace(-1, 2, tokens, dtype=torch.float64)
    results = []
    for compute in (dense_kl, full_kl):
        leaves = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        options = {"temperature": temperature} if compute is dense_kl else {"temperature": temperature, "chunk": chunk}
        kl = compute(*leaves, ref_hidden, ref_head, **options)
        results.append((kl, *torch.autograd.grad((upstream * kl).sum(), leaves)))
    for dense, chunked in zip(*results):
        torch.testing.assert_close(chunked, dense, rtol=1e-10, atol=1e-12)


def test_the_chunked_kl_passes_gradcheck() -> None:
    hidden, head, ref_hidden, ref_head = random_heads(3, 4, 6, torch.float64)
    leaves = hidden.requires_grad_(), head.requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: full_kl(h, w, ref_hidden, ref_head, temperature=0.7, chunk=2), leaves)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_bias_scale_and_soft_cap_with_their_gradients(softcap: float | None) -> None:
    hidden, head, ref_hidden, ref_head = random_heads(7, 5, 11, torch.float64)
    bias, ref_bias = torch.linspace(-1, 1, 11, dtype=torch.float64), torch.linspace(2, 0, 11, dtype=torch.float64)

    def logits(states: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        scaled = 0.5 * (states @ weight.t() + shift)
        return (scaled if softcap is None else softcap * torch.tanh(scaled / softcap)) / 0.7

    def dense(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        log_p, log_q = logits(h, w, b).log_softmax(-1), logits(ref_hidden, ref_head, ref_bias).log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    def chunked(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        options = {"scale": 0.5, "softcap": softcap, "temperature": 0.7, "chunk": 3}
        return full_kl(h, w, ref_hidden, ref_head, bias=b, ref_bias=ref_bias, **options)

    results = []
    for compute in (dense, chunked):
        leaves = [leaf.clone().requires_grad_() for leaf in (hidden, head, bias)]
        kl = compute(*leaves)
        results.append((kl, *torch.autograd.grad((torch.linspace(-1, 2, 7) * kl).sum(), leaves)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_chunked_kl_needs_no_gradient_of_a_frozen_head() -> None:
    hidden, head, ref_hidden, ref_head = random_heads(5, 4, 6, torch.float32)
    full_kl(hidden.requires_grad_(), head, ref_hidden, ref_head, chunk=2).sum().backward()
    assert hidden.grad is not None and hidden.grad.abs().sum() > 0
    assert head.grad is None


def test_the_chunked_kl_of_equal_models_is_zero() -> None:
    hidden, head, _, _ = random_heads(5, 4, 6, torch.float32)
    assert torch.equal(full_kl(hidden, head, hidden, head), torch.zeros(5))


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor made by any operation holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_the_chunked_kl_makes_no_tensor_of_tokens_times_vocabulary() -> None:
    tokens, vocabulary, chunk = 512, 300, 16
    heads = random_heads(tokens, 4, vocabulary, torch.float32)
    heads[0].requires_grad_(), heads[1].requires_grad_()
    with LargestTensor() as largest:
        full_kl(*heads, chunk=chunk).sum().backward()
    assert largest.numbers == chunk * vocabulary
    with LargestTensor() as largest:
        dense_kl(*heads, temperature=1.0).sum().backward()
    assert largest.numbers == tokens * vocabulary


def test_a_fixed_coefficient_does_not_move() -> None:
    controller = FixedKL(0.1)
    controller.update(100.0, 1000)
    assert controller.value == 0.1


def test_an_adaptive_coefficient_survives_a_checkpoint() -> None:
    controller = AdaptiveKL(0.1, target=1.0, horizon=100)
    controller.update(5.0, 10)
    assert controller.value == pytest.approx(0.1 * 1.02)
    restored = AdaptiveKL(0.1, target=1.0, horizon=100)
    restored.load_state_dict(controller.state_dict())
    assert restored.value == controller.value


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_no_number_leaves_an_adaptive_coefficient_as_it_is(kl: float) -> None:
    controller = AdaptiveKL(0.1, target=1.0, horizon=100)
    controller.update(kl, 10)
    assert controller.value == controller.state_dict()["value"] == 0.1
    controller.update(5.0, 10)
    assert controller.value == pytest.approx(0.1 * 1.02)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 10), (1.0, 0)])
def test_an_adaptive_coefficient_refuses_a_target_or_horizon_of_zero(target: float, horizon: float) -> None:
    with pytest.raises(ValueError, match="kl_ctrl"):
        AdaptiveKL(0.1, target=target, horizon=horizon)
