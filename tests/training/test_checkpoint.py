"""Saved and loaded, an engine goes on as if it had never stopped."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hone.errors import UserError
from hone.models.load import ModelSource, load_value_model
from hone.training.checkpoint import EXTRA, MODEL, OPTIMIZER, load_engine, save_engine
from hone.training.engine import TorchEngine
from hone.training.optimizer import build_optimizer
from hone.training.outputs import ForwardOptions
from hone.training.schedule import Schedule
from tests.models_of_families import tiny
from tests.training.test_engine import MICRO, POLICY, make_batch, poisoned

EVERYTHING = ("model", "optimizer", "extra")


def make_engine(seed: int = 0, model=None) -> TorchEngine:
    model = model or tiny("qwen3", seed)
    optimizer = build_optimizer(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = Schedule("cosine", total_steps=6, warmup_steps=2)
    return TorchEngine(
        model, scoring=MICRO["3"], options=ForwardOptions(), optimizer=optimizer, schedule=schedule, grad_clip=0.5
    )


def train(engine: TorchEngine, steps: range) -> list[dict]:
    return [engine.step(make_batch(seed=s), POLICY, training_step=s, mask="loss_mask") for s in steps]


def weights(engine: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights().items()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_loaded_engine_is_bit_equal_and_goes_on_as_if_it_had_never_stopped(tmp_path):
    whole = make_engine()
    train(whole, range(3))
    save_engine(whole, tmp_path, EVERYTHING)
    saved = weights(whole)
    resumed = make_engine(seed=1)
    load_engine(resumed, tmp_path, EVERYTHING)
    assert_same(weights(resumed), saved)
    mine, theirs = resumed.optimizer.state_dict()["state"], whole.optimizer.state_dict()["state"]
    assert mine.keys() == theirs.keys() and mine
    assert all(torch.equal(mine[i][name], theirs[i][name]) for i in mine for name in mine[i])
    assert train(whole, range(3, 6)) == train(resumed, range(3, 6))
    assert_same(weights(resumed), weights(whole))
    assert any(not torch.equal(saved[name], tensor) for name, tensor in weights(whole).items())


def test_without_the_optimizer_the_weights_alone_come_back(tmp_path):
    whole = make_engine()
    train(whole, range(2))
    save_engine(whole, tmp_path, EVERYTHING)
    other = make_engine(seed=1)
    load_engine(other, tmp_path, ["model"])
    assert_same(weights(other), weights(whole))
    assert not other.optimizer.state_dict()["state"]


def test_random_state_and_the_count_of_skipped_steps_are_part_of_it(tmp_path):
    engine = make_engine()
    engine.step(poisoned(make_batch()), POLICY, training_step=0, mask="loss_mask")
    torch.manual_seed(3)
    save_engine(engine, tmp_path, ["extra"])
    expected = torch.rand(4)
    torch.manual_seed(9)
    other = make_engine()
    load_engine(other, tmp_path, ["extra"])
    assert torch.equal(torch.rand(4), expected)
    assert other.nonfinite_in_a_row == 1


@pytest.mark.parametrize(("part", "file"), [("model", MODEL), ("optimizer", OPTIMIZER), ("extra", EXTRA)])
def test_a_part_that_was_not_saved_is_named(part, file, tmp_path):
    engine = make_engine()
    save_engine(engine, tmp_path, [p for p in EVERYTHING if p != part])
    assert not (tmp_path / file).exists()
    with pytest.raises(UserError, match=f"{file}; it was saved without '{part}' in checkpoint.save_contents"):
        load_engine(engine, tmp_path, EVERYTHING)


def test_the_hf_folder_loads_in_transformers_with_its_tokenizer(tmp_path, tiny_tokenizer):
    engine = make_engine()
    train(engine, range(1))
    save_engine(engine, tmp_path, ["hf_model"], tiny_tokenizer)
    assert not (tmp_path / MODEL).exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface")
    assert_same(loaded.state_dict(), weights(engine))
    ids = torch.arange(2, 9)[None]
    reference = tiny("qwen3")
    reference.load_state_dict(weights(engine))
    torch.testing.assert_close(loaded(ids).logits, reference(ids).logits)
    text = "5+8=13"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "huggingface")
    assert tokenizer(text)["input_ids"] == tiny_tokenizer(text)["input_ids"]


def test_a_critic_comes_back_with_its_head(tmp_path):
    tiny("qwen3").save_pretrained(tmp_path / "policy")
    source = ModelSource(str(tmp_path / "policy"))
    critic = make_engine(model=load_value_model(source))
    torch.nn.init.normal_(critic.model.score.weight)
    save_engine(critic, tmp_path / "critic", ["model"])
    again = make_engine(model=load_value_model(source))
    load_engine(again, tmp_path / "critic", ["model"])
    assert_same(weights(again), weights(critic))
    assert again.model.score.weight.any()
