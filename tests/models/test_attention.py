"""The packed layout against attention written out as a loop, and the models it must refuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, BloomForCausalLM, Lfm2Config, Lfm2ForCausalLM

from hone.errors import UserError
from hone.models.attention import PackedLayout, masked_attention, supports_layouts
from hone.models.load import ModelSource, load_causal_lm, load_value_model
from hone.rollout.hf import HFEngine
from tests.models_of_families import FAMILIES, SHAPE, tiny

HEADS, KV_HEADS, WIDTH, SCALE = 4, 2, 8, 0.4


def draw(tokens: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(tokens, heads, WIDTH, generator=g, dtype=torch.float64, requires_grad=True)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def by_a_loop(q, k, v, lengths, window, softcap):
    """Token by token and head by head."""
    rows, start = [], 0
    for length in lengths:
        for t in range(start, start + length):
            first = start if window is None else max(start, t - window + 1)
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                scores = SCALE * k[first : t + 1, shared] @ q[t, head]
                scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
                rows.append(scores.softmax(0) @ v[first : t + 1, shared])
        start += length
    return torch.stack(rows).view(start, HEADS, WIDTH)


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    window=st.sampled_from([None, 1, 3]),
    softcap=st.sampled_from([None, 2.0]),
    seed=st.integers(0, 99),
)
def test_packed_attention_and_its_gradient_equal_a_loop_over_tokens(lengths, window, softcap, seed):
    q, k, v = draw(sum(lengths), seed)
    out = PackedLayout(lengths).attend(0, q, k, v, scale=SCALE, window=window, softcap=softcap)
    expected = by_a_loop(q, k, v, lengths, window, softcap)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for found, wanted in zip(
        torch.autograd.grad(out, (q, k, v), upstream), torch.autograd.grad(expected, (q, k, v), upstream), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_positions_start_anew_in_every_sequence():
    assert PackedLayout([3, 1, 2]).position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]


def test_values_may_be_narrower_than_keys():
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, n, d, generator=g) for heads, n, d in ((4, 1, 8), (2, 5, 8), (2, 5, 3)))
    out = masked_attention(q, k, v, torch.ones(1, 5, dtype=torch.bool), scale=SCALE, softcap=None)
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    torch.testing.assert_close(out, (SCALE * q @ keys.transpose(-1, -2)).softmax(-1) @ values)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_usual_families_can_run_packed(family):
    assert supports_layouts(tiny(family))


def bloom() -> BloomForCausalLM:
    """Adds a bias by position inside its own attention."""
    return BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4))


def convolving() -> Lfm2ForCausalLM:
    """Half of its layers are convolutions over neighbouring tokens, whatever sequence they belong to."""
    return Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]))


@pytest.mark.parametrize("build", [bloom, convolving])
def test_a_model_that_mixes_tokens_behind_the_layouts_back_is_refused_packed_and_by_the_rollout(build, tmp_path):
    model = build()
    model.save_pretrained(tmp_path)
    name = type(model).__name__
    with pytest.raises(UserError, match=f"{name} cannot run packed.*use_remove_padding=False"):
        load_causal_lm(ModelSource(str(tmp_path)))
    assert type(load_causal_lm(ModelSource(str(tmp_path), packed=False))).__name__ == name
    with pytest.raises(UserError, match=f"rollout.name=hf cannot run {name}"):
        HFEngine(model, eos_token_ids=[1], max_model_len=64)


def test_a_critic_on_such_a_model_is_refused_packed(tmp_path):
    bloom().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="BloomForTokenClassification cannot run packed"):
        load_value_model(ModelSource(str(tmp_path)))
