"""Adapters against peft's own loading and merging, and against the formula written out."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hone.errors import UserError
from hone.models.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, LoraSettings, attach
from tests.models_of_families import SHAPE, VOCAB, random_ids, tiny

peft = pytest.importorskip("peft")
NEW = LoraSettings(rank=4, alpha=8, targets="all-linear")
IDS = random_ids([12])[None]


def randomised(model: PreTrainedModel, seed: int = 0) -> None:
    """B is zero in a new adapter, and A then has no gradient."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.requires_grad:
            p.data.normal_(0, 0.05, generator=generator)


def adapted(settings: LoraSettings = NEW, family: str = "qwen3") -> tuple[PreTrainedModel, Adapter]:
    model = tiny(family)
    adapter = attach(model, settings)
    randomised(model)
    return model, adapter


def trained(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS, use_cache=False).logits


def test_a_new_adapter_changes_nothing_and_only_it_is_trained() -> None:
    model = tiny("qwen3")
    expected = logits(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter = attach(model, NEW)
    assert torch.equal(logits(model), expected)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    assert names == adapter.shapes.keys() and len(names) == 14 * 2 and all("lora_" in name for name in names)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2"])
def test_the_model_computes_the_formula_and_merged_weights_do_the_same(family: str) -> None:
    model, adapter = adapted(LoraSettings(3, 6, ["q_proj", "down_proj"]), family)
    plain, state = tiny(family), model.state_dict()
    base = plain.state_dict()
    for name, layer in base.items():
        if "q_proj" in name or "down_proj" in name:
            stem = name.removesuffix(".weight")
            a, b = (state[f"{stem}.{matrix}.default.weight"] for matrix in ("lora_A", "lora_B"))
            layer += 6 / 3 * b @ a
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-5, atol=1e-5)
    merged = adapter.merged(state)
    assert merged.keys() == base.keys()
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(merged[name], expected, rtol=1e-6, atol=1e-7)


def test_layers_that_hold_their_weight_transposed_are_merged_rightly() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=VOCAB, n_positions=16)).eval()
    plain = GPT2LMHeadModel(model.config).eval()
    adapter = attach(model, NEW)
    randomised(model)
    plain.load_state_dict(adapter.merged(model.state_dict()))
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-5)


def test_experts_stay_as_they_are() -> None:
    """They are no linear layers, but one tensor for all."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **experts)).eval()
    plain = Qwen3MoeForCausalLM(model.config).eval()
    adapter = attach(model, NEW)
    randomised(model)
    assert {name.rpartition(".")[2] for name in adapter.layers} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    plain.load_state_dict(adapter.merged(model.state_dict()))
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-5, atol=1e-5)


def test_merging_rounds_once_to_the_format_of_the_weights() -> None:
    model = tiny("qwen3").to(torch.bfloat16)
    adapter = attach(model, NEW)
    randomised(model)
    assert {p.dtype for p in trained(model).values()} == {torch.float32}
    state, name = model.state_dict(), "model.layers.0.self_attn.q_proj"
    a, b = (state[f"{name}.{matrix}.default.weight"] for matrix in ("lora_A", "lora_B"))
    exact = state[f"{name}.base_layer.weight"].double() + 2 * b.double() @ a.double()
    assert torch.equal(adapter.merged(state)[f"{name}.weight"], exact.to(torch.bfloat16))


@pytest.mark.parametrize("settings", [NEW, LoraSettings(2, 5, "v_proj", section="model")], ids=["all", "one"])
def test_peft_loads_and_merges_what_is_saved_to_the_same(settings: LoraSettings, tmp_path: Path) -> None:
    model, adapter = adapted(settings)
    adapter.save(tmp_path, trained(model))
    theirs = peft.PeftModel.from_pretrained(tiny("qwen3"), tmp_path)
    torch.testing.assert_close(logits(theirs), logits(model), rtol=0, atol=0)
    merged, ours = theirs.merge_and_unload().state_dict(), adapter.merged(model.state_dict())
    assert merged.keys() == ours.keys()
    assert all(torch.allclose(ours[name], tensor, rtol=1e-6, atol=1e-7) for name, tensor in merged.items())
    assert json.loads((tmp_path / ADAPTER_CONFIG).read_text())["base_model_name_or_path"] == model.config.name_or_path


def test_peft_loads_the_adapter_and_the_head_of_a_value_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_config(tiny("qwen3").config).eval()
    model.save_pretrained(tmp_path / "base")
    adapter = attach(model, NEW, head="score")
    randomised(model)
    adapter.save(tmp_path / "adapter", trained(model))
    base = AutoModelForTokenClassification.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    torch.testing.assert_close(logits(theirs), logits(model), rtol=0, atol=0)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "base").eval()
    attach(again, LoraSettings(0, 16, "all-linear", path=str(tmp_path / "adapter")), head="score")
    assert torch.equal(logits(again), logits(model))


def made_by_peft(folder: Path, **fields: object) -> torch.Tensor:
    """An adapter as another program leaves it; the logits of its model."""
    config = peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], **fields)
    model = peft.get_peft_model(tiny("qwen3"), config)
    randomised(model)
    model.save_pretrained(folder)
    return logits(model)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lora_dropout": 0.3},
        {"use_rslora": True},
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}},
        {"layers_to_transform": [1]},
    ],
    ids=str,
)
def test_a_run_goes_on_from_an_adapter_that_peft_made(fields: dict, tmp_path: Path) -> None:
    expected = made_by_peft(tmp_path, **fields)
    model = tiny("qwen3")
    adapter = attach(model, LoraSettings(0, 16, "all-linear", path=str(tmp_path)))
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=0)
    assert all(p.requires_grad for name, p in model.named_parameters() if "lora_" in name)
    assert not any(isinstance(module, torch.nn.Dropout) and module.p for module in model.modules())
    adapter.save(tmp_path / "again", trained(model))
    theirs = peft.PeftModel.from_pretrained(tiny("qwen3"), tmp_path / "again")
    torch.testing.assert_close(logits(theirs), expected, rtol=0, atol=0)


def test_the_start_of_a_run_is_the_base_or_the_adapter_it_went_on_from(tmp_path: Path) -> None:
    begun = made_by_peft(tmp_path)
    settings = LoraSettings(0, 16, "all-linear", path=str(tmp_path))
    for options, expected in ((NEW, logits(tiny("qwen3"))), (settings, begun)):
        model = tiny("qwen3")
        adapter = attach(model, options, keep_start=True)
        names = trained(model).keys()
        assert not any("start" in name for name in names)
        with adapter.as_at_start():
            assert torch.equal(logits(model), expected)
        randomised(model, seed=1)
        moved = logits(model)
        with adapter.as_at_start():
            assert torch.equal(logits(model), expected)
        assert torch.equal(logits(model), moved) and not torch.equal(moved, expected)
        assert trained(model).keys() == names
        adapter.merged(model.state_dict())  # knows the names of both


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "more than LoRA .use_dora=True"),
        ({"bias": "all"}, "more than LoRA .bias=all"),
        ({"init_lora_weights": "pissa"}, "more than LoRA .init_lora_weights=pissa"),
        ({"peft_type": "IA3"}, "holds no LoRA adapter"),
        ({"alora_invocation_tokens": [1]}, "more than LoRA .alora_invocation_tokens"),
        ({"of_the_future": "yes"}, "more than LoRA .of_the_future=yes"),
    ],
)
def test_adapters_that_compute_something_else_are_refused(fields: dict, message: str, tmp_path: Path) -> None:
    made_by_peft(tmp_path)
    file = tmp_path / ADAPTER_CONFIG
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    with pytest.raises(UserError, match=message):
        attach(tiny("qwen3"), LoraSettings(0, 16, "all-linear", path=str(tmp_path)))


def test_the_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    made_by_peft(tmp_path)
    settings = LoraSettings(0, 16, "all-linear", path=str(tmp_path), section="model")
    weights = load_file(tmp_path / ADAPTER_WEIGHTS)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for change in ({name: weights[name][:, :8]}, {name.replace("layers.0", "layers.7"): weights[name]}):
        save_file({k: v.clone() for k, v in {**weights, **change}.items()}, tmp_path / ADAPTER_WEIGHTS)
        with pytest.raises(UserError, match="adapter of another model: 'model.layers"):
            attach(tiny("qwen3"), settings)
    save_file({"base_model.model.other.lora_A.weight": weights[name]}, tmp_path / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=r"model\.lora_adapter_path: .* none of this model's layers"):
        attach(tiny("qwen3"), settings)


def test_a_checkpoint_of_another_rank_or_scale_is_refused(tmp_path: Path) -> None:
    model, adapter = adapted()
    adapter.save(tmp_path, trained(model))
    assert adapter.load(tmp_path).keys() == adapter.shapes.keys()
    for other, field in ((LoraSettings(8, 8, "all-linear"), "r"), (LoraSettings(4, 16, "all-linear"), "lora_alpha")):
        with pytest.raises(UserError, match=f"an adapter with {field}=.*this run's has {field}="):
            attach(tiny("qwen3"), other).load(tmp_path)
