"""What a step leaves behind: parameters, clipping, values and hidden garbage, whatever the micro-batches."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForTokenClassification

from hone.batch import Batch
from hone.errors import UserError
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.optimizer import build_optimizer
from hone.training.outputs import ForwardOptions
from hone.workers.objectives import PolicyObjective, ValueObjective
from tests.models_of_families import SHAPE, tiny
from tests.training.test_engine import MICRO, POLICY, PROMPTS, RESPONSES, make_batch

WAYS = [(name, packed) for name in MICRO for packed in (True, False)]


def tiny_critic() -> Qwen3ForTokenClassification:
    torch.manual_seed(5)
    model = Qwen3ForTokenClassification(Qwen3Config(**SHAPE, num_labels=1, classifier_dropout=0.0))
    torch.nn.init.normal_(model.score.weight)
    return model


def engine_of(model, name: str, packed: bool, **options) -> TorchEngine:
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.0)
    micro, forward = MICRO[name], ForwardOptions(packed=packed)
    return TorchEngine(model, scoring=micro, train=micro, options=forward, optimizer=optimizer, **options)


def value_batch(seed: int = 0) -> Batch:
    batch = make_batch("seq-mean-token-mean", seed)
    inside = batch["loss_mask"].bool()
    draw = torch.Generator().manual_seed(seed + 1)
    columns = {name: torch.randn(batch.num_tokens, generator=draw) for name in ("values", "returns")}
    return batch.with_tokens(**{k: torch.where(inside, v, float("inf")) for k, v in columns.items()})


def spans(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True))


def values_written_out(model: Qwen3ForTokenClassification, batch: Batch) -> torch.Tensor:
    """The value of the state before each token, one sequence at a time; a first token has none."""
    rows = []
    for a, b in spans(batch):
        states = model(batch["input_ids"][a:b][None], use_cache=False).logits[0, :, 0]
        rows.append(torch.cat([states.new_zeros(1), states[:-1]]))
    return torch.cat(rows)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_critics_gradient_and_metrics_equal_the_clipped_value_loss_written_out(seed):
    batch, plain = value_batch(seed), tiny_critic()
    inside = batch["loss_mask"].bool()
    v, old, returns = (x[inside] for x in (values_written_out(plain, batch), batch["values"], batch["returns"]))
    errors = (v - returns) ** 2, (torch.minimum(torch.maximum(v, old - 0.2), old + 0.2) - returns) ** 2
    loss = (batch["loss_weight"][inside] * 0.5 * torch.maximum(*errors)).sum()
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    for name, packed in WAYS:
        engine = engine_of(tiny_critic(), name, packed, grad_clip=1e9)
        metrics = engine.step(batch, ValueObjective(0.2), training_step=0, mask="loss_mask")
        gradient = torch.cat([p.grad.flatten() for p in engine.model.parameters()])
        assert (gradient - expected).norm() < 1e-5 * expected.norm(), (name, packed)
        assert metrics["vf_loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert metrics["vpred_mean"] == pytest.approx(v.mean().item(), rel=1e-4, abs=1e-6)
        assert metrics["vf_clipfrac"] == pytest.approx((errors[1] > errors[0]).float().mean().item(), abs=1e-6)


def test_values_stand_at_the_token_they_speak_of_and_are_zero_elsewhere():
    batch = value_batch()
    inside = batch["response_mask"].bool()
    expected = torch.where(inside, values_written_out(tiny_critic(), batch), 0.0).detach()
    for name, packed in WAYS:
        found = engine_of(tiny_critic(), name, packed).forward(batch, {"values"})
        assert torch.equal(found.offsets, batch.offsets)
        torch.testing.assert_close(found["values"], expected, rtol=1e-5, atol=1e-5)
        assert not found["values"][~inside].any()


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_parameters_after_two_steps_do_not_depend_on_micro_batches_or_packing(optimizer):
    results = []
    for name, packed in WAYS:
        model = tiny("qwen3")
        chosen = build_optimizer(model.parameters(), name=optimizer, lr=1e-3, weight_decay=0.1, eps=1e-3)
        engine = engine_of(model, name, packed, optimizer=chosen)
        for seed in (0, 1):
            engine.step(make_batch(seed=seed), POLICY, training_step=0, mask="loss_mask")
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    before = torch.cat([p.detach().flatten() for p in tiny("qwen3").parameters()])
    assert (results[0] - before).abs().max() > 1e-5
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=0, atol=1e-6)


def test_gspo_gradient_equals_the_sequence_ratio_written_out():
    batch = make_batch("seq-mean-token-mean", seed=2)
    objective = PolicyObjective("gspo", POLICY.params)
    plain, total = tiny("qwen3"), torch.zeros(())
    for a, b in spans(batch):
        ids, chosen = batch["input_ids"][a:b], batch["loss_mask"][a + 1 : b].bool()
        logp = plain(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0][chosen]
        old, advantage, weight = (
            batch[name][a + 1 : b][chosen] for name in ("old_logprobs", "advantages", "loss_weight")
        )
        sequence = (logp - old).mean()
        # One ratio per sequence whose gradient every token carries for itself, weighed by that token's advantage.
        ratio = (logp - logp.detach() + sequence.detach()).exp()
        total = total + (weight * torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))).sum()
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()])
    for name, packed in WAYS:
        engine = engine_of(tiny("qwen3"), name, packed, grad_clip=1e9)
        metrics = engine.step(batch, objective, training_step=0, mask="loss_mask")
        gradient = torch.cat([p.grad.flatten() for p in engine.model.parameters()])
        assert (gradient - expected).norm() < 1e-5 * expected.norm(), (name, packed)
        assert metrics["pg_loss"] == pytest.approx(total.item(), rel=1e-5, abs=1e-7)


def test_importance_weights_multiply_the_token_losses():
    batch = make_batch()
    objective = PolicyObjective("vanilla", POLICY.params)
    weights = torch.where(batch["loss_mask"].bool(), 2.5, float("nan"))
    gradients = []
    for given in (batch, batch.with_tokens(importance_weights=weights)):
        engine = engine_of(tiny("qwen3"), "3", True, grad_clip=1e9)
        engine.step(given, objective, training_step=0, mask="loss_mask")
        gradients.append(torch.cat([p.grad.flatten() for p in engine.model.parameters()]))
    torch.testing.assert_close(gradients[1], 2.5 * gradients[0], rtol=1e-5, atol=1e-7)


def test_what_stands_under_the_mask_changes_nothing_at_all():
    steps = []
    for garbage in (0.0, float("nan"), float("-inf")):
        batch = make_batch()
        inside = batch["loss_mask"].bool()
        names = ("old_logprobs", "ref_logprobs", "advantages", "loss_weight")
        batch = batch.with_tokens(**{n: torch.where(inside, batch[n], garbage) for n in names})
        engine = engine_of(tiny("qwen3"), "3", True)
        metrics = engine.step(batch, POLICY, training_step=0, mask="loss_mask")
        steps.append((torch.cat([p.grad.flatten() for p in engine.model.parameters()]), metrics))
    for gradient, metrics in steps[1:]:
        assert torch.equal(gradient, steps[0][0])
        assert metrics == steps[0][1]


@pytest.mark.parametrize("clip", [0.05, None])
def test_the_gradient_is_scaled_down_to_grad_clip_and_its_norm_before_that_is_logged(clip):
    model = tiny("qwen3")
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = engine_of(model, "3", True, optimizer=optimizer, grad_clip=clip)
    metrics = engine.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
    moved = (torch.cat([p.detach().flatten() for p in model.parameters()]) - before).norm().item()
    assert metrics["grad_norm"] > 0.05 and math.isfinite(metrics["grad_norm"])
    assert moved == pytest.approx(metrics["grad_norm"] if clip is None else clip, rel=1e-3)


def test_a_row_too_long_for_the_budget_ends_the_step_before_anything_changes():
    model = tiny("qwen3")
    micro = MicroBatching(max_tokens=10, key="a.b")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = TorchEngine(model, scoring=micro, options=ForwardOptions(), optimizer=optimizer)
    longest = max(p + r for p, r in zip(PROMPTS, RESPONSES, strict=True))
    with pytest.raises(UserError, match=f"a.b=10 cannot hold .* set it to {longest} or more"):
        engine.step(make_batch(), POLICY, training_step=0, mask="loss_mask")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny("qwen3").parameters(), strict=True))
