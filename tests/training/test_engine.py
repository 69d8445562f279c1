"""The gradient of a mini-batch depends on the mini-batch alone, whatever the micro-batches; bad numbers never enter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hone.algorithms import LOSS_AGG_MODES, PolicyLossParams, loss_weights
from hone.batch import Batch
from hone.errors import UserError
from hone.models.heads import LogitMemory
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.workers.objectives import LikelihoodObjective, PolicyObjective
from tests.models_of_families import random_ids, tiny

PROMPTS = [3, 2, 4, 1, 5, 2, 3]
RESPONSES = [4, 9, 1, 6, 2, 12, 5]
MICRO = {
    "1": MicroBatching(1),
    "3": MicroBatching(3),
    "all": MicroBatching(100),
    "16 tokens": MicroBatching(max_tokens=16),
    "30 tokens": MicroBatching(max_tokens=30),
}
POLICY = PolicyObjective("vanilla", PolicyLossParams(), entropy_coeff=0.01, kl_kind="low_var_kl", kl_coef=0.1)


def make_batch(mode: str = "token-mean", seed: int = 0) -> Batch:
    """Trajectories with a hole in the mask, and columns that are garbage wherever the mask is 0."""
    lengths = [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    generator = torch.Generator().manual_seed(seed)
    mask = [[0] * p + [1] * r for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    mask[1][6] = mask[5][5] = 0
    ids = random_ids(lengths, seed)
    batch = Batch.from_sequences({"input_ids": ids.split(lengths), "loss_mask": mask})
    inside = batch["loss_mask"].bool()
    columns = {}
    for name in ("old_logprobs", "ref_logprobs", "advantages"):
        values = torch.randn(len(ids), generator=generator) * 0.3 - (0 if name == "advantages" else 4.2)
        columns[name] = torch.where(inside, values, float("nan"))
    weights = loss_weights(batch["loss_mask"], batch.offsets, mode, scale_length=16)
    return batch.with_tokens(response_mask=batch["loss_mask"], loss_weight=weights, **columns)


def make_engine(micro: MicroBatching, *, packed: bool = True, chunk: int | None = None, lr: float = 0.0) -> TorchEngine:
    model = tiny("qwen3")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    options = ForwardOptions(packed=packed, memory=LogitMemory(chunk))
    return TorchEngine(model, scoring=micro, train=micro, options=options, optimizer=optimizer, grad_clip=1e9)


def gradient_of(engine: TorchEngine, batch: Batch, objective) -> tuple[torch.Tensor, dict]:
    metrics = engine.step(batch, objective, training_step=0, mask="loss_mask")
    return torch.cat([p.grad.flatten() for p in engine.model.parameters()]), metrics


def brute_force_gradient(batch: Batch) -> torch.Tensor:
    model = tiny("qwen3")
    brute_force_loss(batch, lambda ids: model(ids, use_cache=False).logits).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def brute_force_loss(batch: Batch, logits: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """PPO's clipped loss - 0.01 entropy + 0.1 k3, written out, one sequence at a time through a model's logits."""
    total = torch.zeros(())
    for a, b in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
        ids = batch["input_ids"][a:b]
        all_logprobs = logits(ids[None])[0].log_softmax(-1)
        for t in range(1, b - a):
            if not batch["loss_mask"][a + t]:
                continue
            logp = all_logprobs[t - 1, ids[t]]
            entropy = -(all_logprobs[t - 1].exp() * all_logprobs[t - 1]).sum()
            ratio = (logp - batch["old_logprobs"][a + t]).clamp(-20, 20).exp()
            advantage = batch["advantages"][a + t]
            loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
            if advantage < 0:
                loss = torch.min(loss, -advantage * 3.0)
            y = batch["ref_logprobs"][a + t] - logp
            total = total + batch["loss_weight"][a + t] * (
                loss - 0.01 * entropy + 0.1 * (y.exp() - y - 1).clamp(-10, 10)
            )
    return total


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_the_gradient_of_a_mini_batch_does_not_depend_on_micro_batches_or_packing(mode):
    batch = make_batch(mode)
    expected = brute_force_gradient(batch)
    for packed in (True, False):
        for name, micro in MICRO.items():
            gradient, metrics = gradient_of(make_engine(micro, packed=packed), batch, POLICY)
            difference = (gradient - expected).norm() / expected.norm()
            assert difference < 1e-5, f"micro-batches {name}, packed {packed}: {difference}"
            assert all(torch.isfinite(torch.tensor(v)) for v in metrics.values())


@pytest.mark.parametrize("objective", [PolicyObjective("gspo", PolicyLossParams()), LikelihoodObjective(), POLICY])
@pytest.mark.parametrize("chunk", [None, 5])
def test_metrics_and_gradients_of_every_objective_are_those_of_one_micro_batch(objective, chunk):
    batch = make_batch(seed=3)
    expected, whole = gradient_of(make_engine(MICRO["all"]), batch, objective)
    for micro in MICRO.values():
        gradient, metrics = gradient_of(make_engine(micro, chunk=chunk), batch, objective)
        assert (gradient - expected).norm() < 1e-5 * expected.norm()
        assert metrics == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_forward_gives_aligned_columns_whatever_the_micro_batches():
    batch = make_batch()
    model = tiny("qwen3")
    inside = batch["response_mask"].bool()
    for micro in MICRO.values():
        columns = make_engine(micro).forward(batch, {"logprobs", "entropy"})
        assert torch.equal(columns["logprobs"][~inside], torch.zeros(int((~inside).sum())))
        for a, b in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
            ids = batch["input_ids"][a:b]
            expected = model(ids[None]).logits[0].log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
            chosen = inside[a + 1 : b]
            torch.testing.assert_close(columns["logprobs"][a + 1 : b][chosen], expected[chosen], rtol=1e-5, atol=1e-5)


def poisoned(batch: Batch) -> Batch:
    advantages = batch["advantages"].clone()
    advantages[int(batch["loss_mask"].nonzero()[0])] = float("nan")
    return batch.with_tokens(advantages=advantages)


def test_a_non_finite_number_skips_the_step_and_three_in_a_row_end_the_run():
    engine = make_engine(MICRO["3"], lr=0.1)
    bad, good = poisoned(make_batch()), make_batch()
    for batch, skipped in ((bad, True), (bad, True), (good, False), (bad, True), (bad, True)):
        before = [p.clone() for p in engine.model.parameters()]
        metrics = engine.step(batch, POLICY, training_step=0, mask="loss_mask")
        unchanged = all(torch.equal(a, b) for a, b in zip(before, engine.model.parameters(), strict=True))
        assert (metrics["nonfinite_steps"] == 1, unchanged) == (skipped, skipped)
    with pytest.raises(UserError, match="3 optimiser steps in a row"):
        engine.step(bad, POLICY, training_step=0, mask="loss_mask")


def test_a_mini_batch_without_trainable_tokens_changes_nothing():
    model = tiny("qwen3")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    engine = TorchEngine(model, scoring=MICRO["3"], options=ForwardOptions(), optimizer=optimizer)
    engine.step(make_batch(), POLICY, training_step=0, mask="loss_mask")  # leaves momentum behind
    before = [p.clone() for p in model.parameters()]
    empty = make_batch()
    empty = empty.with_tokens(loss_mask=torch.zeros_like(empty["loss_mask"]), loss_weight=torch.zeros(empty.num_tokens))
    metrics = engine.step(empty, POLICY, training_step=0, mask="loss_mask")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(torch.isfinite(torch.tensor(v)) for v in metrics.values())


def test_a_trainable_first_token_is_refused():
    batch = make_batch()
    mask = batch["loss_mask"].clone()
    mask[0] = 1
    with pytest.raises(ValueError, match="first token of a sequence"):
        make_engine(MICRO["all"]).step(batch.with_tokens(loss_mask=mask), POLICY, training_step=0, mask="loss_mask")
