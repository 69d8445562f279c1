"""Which layers get an adapter."""

from __future__ import annotations

import pytest
from transformers import AutoModelForTokenClassification, GPT2Config, GPT2LMHeadModel

from hone.errors import UserError
from hone.models.lora_targets import linear_layers, short_names, target_layers
from tests.models_of_families import VOCAB, tiny

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def last(names: list[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names}


@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2"])
def test_all_linear_is_every_linear_layer_but_the_head(family: str) -> None:
    model = tiny(family)
    chosen = target_layers(model, "all-linear", None, "model")
    assert last(chosen) == {*ATTENTION, *MLP} and len(chosen) == 14
    assert set(short_names(model, chosen)) == {*ATTENTION, *MLP}


def test_the_head_of_a_value_model_and_layers_of_other_classes() -> None:
    value_model = AutoModelForTokenClassification.from_config(tiny("qwen3").config)
    assert "score" not in linear_layers(value_model) and len(linear_layers(value_model)) == 14
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=VOCAB, n_positions=16))
    assert last(target_layers(gpt2, "all-linear", None, "model")) == {"c_attn", "c_proj", "c_fc"}


@pytest.mark.parametrize(
    ("targets", "excluded", "expected"),
    [
        (["q_proj", "v_proj"], None, {"q_proj", "v_proj"}),
        ("q_proj, v_proj", None, {"q_proj", "v_proj"}),
        ("q_proj", None, {"q_proj"}),
        (r".*\.(q|k)_proj", None, {"q_proj", "k_proj"}),
        ("all-linear", ["down_proj", "up_proj"], {*ATTENTION, "gate_proj"}),
        ("all-linear", r".*self_attn.*", set(MLP)),
    ],
)
def test_names_and_patterns_mean_layers(targets, excluded, expected) -> None:
    assert last(target_layers(tiny("qwen3"), targets, excluded, "model")) == expected


def test_a_full_name_means_one_layer_and_stays_one() -> None:
    model, name = tiny("qwen3"), "model.layers.1.self_attn.q_proj"
    assert target_layers(model, [name], None, "model") == [name]
    assert short_names(model, [name]) == [name]  # the last part would mean the other layer too


@pytest.mark.parametrize(
    ("targets", "excluded", "message"),
    [
        (["q_proj", "w_proj"], None, r"critic\.model\.target_modules: there is no layer 'w_proj'; .*q_proj, k_proj"),
        ("", None, r"critic\.model\.target_modules: there is no layer"),
        (".*nothing.*", None, r"there is no layer '\.\*nothing\.\*'"),
        ("*_proj", None, r"target_modules='\*_proj' is not a regular expression"),
        (["lm_head"], None, r"target_modules: lm_head is no linear layer inside the transformer; .*the output head"),
        (["embed_tokens"], None, r"model\.embed_tokens is no linear layer"),
        (["self_attn"], None, r"model\.layers\.0\.self_attn is no linear layer"),
        ("all-linear", ["lm_head"], r"critic\.model\.exclude_modules: there is no layer 'lm_head'"),
        (["q_proj"], ["q_proj"], r"exclude_modules leaves no layer"),
    ],
)
def test_what_means_nothing_or_something_else_is_refused(targets, excluded, message) -> None:
    with pytest.raises(UserError, match=message):
        target_layers(tiny("qwen3"), targets, excluded, "critic.model")
