"""On a CPU micro-batches are cut finer and run in threads side by side: neither their number nor their timing shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from hone.batch import Batch
from hone.training import side_by_side
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.workers.objectives import PolicyObjective
from tests.models_of_families import tiny
from tests.training.test_engine import MICRO, POLICY, PROMPTS, gradient_of, make_batch

Use = Callable[[int], None]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    monkeypatch.setattr(side_by_side, "WORTH_A_THREAD", 4)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def make_engine(micro: MicroBatching, **options: object) -> TorchEngine:
    model = tiny("qwen3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    forward = ForwardOptions(**options)
    return TorchEngine(model, scoring=micro, train=micro, options=forward, optimizer=optimizer, grad_clip=1e9)


def batch_with_prompts() -> Batch:
    return make_batch().with_rows(prompt_length=torch.tensor(PROMPTS))


def at_once(engine: TorchEngine) -> int:
    return max(passes.at_once for passes in engine._passes(batch_with_prompts(), engine.train, "loss_mask"))


@pytest.mark.parametrize("options", [{}, {"packed": False}, {"shared_prompts": True}], ids=str)
@pytest.mark.parametrize("micro", MICRO)
def test_gradients_metrics_and_scores_are_those_of_one_thread(cores: Use, micro: str, options: dict) -> None:
    batch = batch_with_prompts()
    found = []
    for count in (1, 2, 4):
        cores(count)
        engine = make_engine(MICRO[micro], **options)
        found.append((*gradient_of(engine, batch, POLICY), engine.forward(batch, {"logprobs", "entropy"})))
        assert at_once(engine) <= count
        assert at_once(engine) == count or micro != "all" or options.get("shared_prompts")
    for gradient, metrics, scores in found[1:]:
        assert (gradient - found[0][0]).norm() < 1e-5 * found[0][0].norm()
        assert metrics == pytest.approx(found[0][1], rel=1e-4, abs=1e-6)
        for name in ("logprobs", "entropy"):
            torch.testing.assert_close(scores[name], found[0][2][name], rtol=1e-5, atol=1e-5)


def test_they_run_side_by_side_and_the_same_work_gives_the_same_bits(cores: Use) -> None:
    cores(4)
    assert at_once(make_engine(MICRO["all"])) == 4
    gradients = [gradient_of(make_engine(MICRO["all"]), make_batch(), POLICY)[0] for _ in range(20)]
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


def test_a_model_with_dropout_runs_alone(cores: Use) -> None:
    """Its random numbers would come in the order in which threads ask for them."""
    cores(4)
    engine = make_engine(MICRO["all"])
    engine.model.config.attention_dropout = 0.1
    assert at_once(engine) == 1


def test_checkpointed_layers_are_computed_again_by_their_own_thread(cores: Use) -> None:
    batch = make_batch()
    expected, _ = gradient_of(make_engine(MICRO["all"]), batch, POLICY)
    cores(4)
    engine = make_engine(MICRO["all"])
    engine.model.gradient_checkpointing_enable({"use_reentrant": False})
    gradient, _ = gradient_of(engine, batch, POLICY)
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


def test_an_error_in_a_thread_reaches_the_caller(cores: Use) -> None:
    cores(2)
    batch = make_batch()
    batch = batch.only([name for name in batch.tokens if name != "ref_logprobs"])
    with pytest.raises(KeyError, match="ref_logprobs"):
        gradient_of(make_engine(MICRO["all"]), batch, POLICY)


def test_nothing_is_trained_twice_when_some_micro_batches_have_no_trained_token(cores: Use) -> None:
    batch = make_batch()
    mask = batch["loss_mask"].clone()
    mask[: int(batch.offsets[4])] = 0
    batch = batch.with_tokens(loss_mask=mask, loss_weight=batch["loss_weight"] * mask)
    plain = PolicyObjective("vanilla", POLICY.params, entropy_coeff=0.0, kl_kind=None, kl_coef=0.0)
    expected, _ = gradient_of(make_engine(MICRO["all"]), batch, plain)
    cores(4)
    gradient, _ = gradient_of(make_engine(MICRO["all"]), batch, plain)
    assert (gradient - expected).norm() < 1e-5 * expected.norm()
