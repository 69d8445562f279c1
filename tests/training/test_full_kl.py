"""The exact KL to a reference in the same process: value and gradient of the whole vocabulary, however it is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM, PhiConfig, PhiForCausalLM

from hone.algorithms import PolicyLossParams
from hone.batch import Batch
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.workers.objectives import PolicyObjective
from tests.models_of_families import SHAPE, tiny
from tests.training.test_engine import MICRO, make_batch

KL_ONLY = PolicyObjective("gpg", PolicyLossParams(), kl_kind="full", kl_coef=0.7)
TEMPERATURE = 0.8


def engine(micro: MicroBatching, models: tuple[Any, Any], *, packed: bool = True) -> TorchEngine:
    policy, reference = models
    options = ForwardOptions(packed=packed, temperature=TEMPERATURE)
    other = TorchEngine(reference.requires_grad_(False), scoring=micro, options=options)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    return TorchEngine(
        policy, scoring=micro, train=micro, options=options, optimizer=optimizer, grad_clip=1e9, reference=other
    )


def silent(batch: Batch) -> Batch:
    """Without advantages, so that the KL is all there is to minimise."""
    return batch.with_tokens(advantages=torch.zeros(batch.num_tokens))


def by_hand(batch: Batch, policy: Any, reference: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The KL of every trained token and 0.7 times its weighted sum, one sequence at a time through the logits."""
    kl, total = torch.zeros(batch.num_tokens), torch.zeros(())
    for a, b in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
        ids = batch["input_ids"][None, a:b]
        log_p, log_q = ((m(ids, use_cache=False).logits[0] / TEMPERATURE).log_softmax(-1) for m in (policy, reference))
        exact = (log_p.exp() * (log_p - log_q.detach())).sum(-1)
        for t in range(1, b - a):
            if batch["loss_mask"][a + t]:
                kl[a + t] = float(exact[t - 1].detach())
                total = total + 0.7 * batch["loss_weight"][a + t] * exact[t - 1]
    return kl, total


def granite(seed: int) -> Any:
    """Its logits are divided by 4."""
    torch.manual_seed(seed)
    config = GraniteConfig(**SHAPE, logits_scaling=4.0)
    config._attn_implementation = "sdpa"
    return GraniteForCausalLM(config).eval()


def phi(seed: int) -> Any:
    """Its head has a bias."""
    torch.manual_seed(seed)
    config = PhiConfig(**SHAPE)
    config._attn_implementation = "sdpa"
    model = PhiForCausalLM(config).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    return model


def pair(family: str) -> tuple[Any, Any]:
    make = {"granite": granite, "phi": phi}.get(family, lambda seed: tiny(family, seed=seed))
    return make(0), make(1)


@pytest.mark.parametrize("family", ["qwen3", "llama", "granite", "phi", "gemma2"])  # Gemma 2 soft-caps its logits
def test_value_and_gradient_are_those_of_the_whole_vocabulary_for_any_micro_batches(family: str) -> None:
    batch = silent(make_batch())
    policy, reference = pair(family)
    values, loss = by_hand(batch, policy, reference)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    for packed in (True, False):
        for micro in MICRO.values():
            trained = engine(micro, pair(family), packed=packed)
            found = trained.forward(batch, {"full_kl", "logprobs"}, mask="loss_mask")["full_kl"]
            torch.testing.assert_close(found, values, rtol=1e-5, atol=1e-6)
            metrics = trained.step(batch, KL_ONLY, training_step=0, mask="loss_mask")
            gradient = torch.cat([p.grad.flatten() for p in trained.model.parameters()])
            assert (gradient - expected).norm() / expected.norm() < 1e-5
            assert 0.7 * metrics["kl_loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_the_reference_learns_nothing_and_its_own_kl_is_0() -> None:
    batch = silent(make_batch())
    trained = engine(MICRO["all"], (tiny("qwen3"), tiny("qwen3")))
    metrics = trained.step(batch, KL_ONLY, training_step=0, mask="loss_mask")
    assert metrics["kl_loss"] == 0.0 and metrics["grad_norm"] < 1e-6
    assert trained.reference is not None and all(p.grad is None for p in trained.reference.model.parameters())
