"""Packed, padded and one at a time: the same hidden states, log-probs and gradients, and no sequence sees another."""

import pytest
import torch

from hone.errors import UserError
from hone.models.attention import layout_attention
from hone.models.forward import hidden_states
from hone.models.heads import LogitHead, LogitMemory, token_logprobs
from hone.models.load import enable_checkpointing
from tests.models_of_families import FAMILIES, random_ids, tiny

LENGTHS = [5, 14, 1, 9, 9, 2]


def alone(model, ids, lengths):
    """Log-softmax of the model's own logits, one sequence at a time."""
    return torch.cat(
        [model(piece[None], use_cache=False).logits[0].float().log_softmax(-1) for piece in ids.split(lengths)]
    )


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("chunk", [None, 7])
def test_logprobs_and_gradients_equal_those_of_single_sequences(family, packed, chunk):
    for seed in (0, 1):
        model = tiny(family, seed)
        ids = random_ids(LENGTHS, seed)
        weights = torch.randn(len(ids), generator=torch.Generator().manual_seed(seed))
        expected_all = alone(model, ids, LENGTHS)
        expected = expected_all.gather(-1, ids[:, None])[:, 0]
        expected_entropy = -(expected_all.exp() * expected_all).sum(-1)
        expected_gradient = gradients(model, (weights * (expected + 0.3 * expected_entropy)).sum())
        hidden = hidden_states(model, ids, LENGTHS, packed=packed)
        logprobs, entropy = token_logprobs(hidden, LogitHead.of(model), ids, entropy=True, memory=LogitMemory(chunk))
        gradient = gradients(model, (weights * (logprobs + 0.3 * entropy)).sum())
        torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=2e-5)
        assert (gradient - expected_gradient).norm() <= 1e-5 * expected_gradient.norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_never_sees_another(family):
    model = tiny(family)
    ids = random_ids(LENGTHS)
    other = ids.clone()
    other[: LENGTHS[0]] = (other[: LENGTHS[0]] + 1) % 60 + 2
    with torch.no_grad():
        before, after = (hidden_states(model, x, LENGTHS, packed=True) for x in (ids, other))
    assert not torch.equal(before[: LENGTHS[0]], after[: LENGTHS[0]])
    assert torch.equal(before[LENGTHS[0] :], after[LENGTHS[0] :])


def test_temperature_divides_the_logits():
    model = tiny("qwen3")
    ids = random_ids([8])
    hidden = hidden_states(model, ids, [8], packed=True)
    logprobs, _ = token_logprobs(hidden, LogitHead.of(model), ids, temperature=0.7)
    expected = (tiny("qwen3")(ids[None]).logits[0] / 0.7).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)


def test_gradient_checkpointing_gives_the_same_gradient():
    ids = random_ids(LENGTHS)
    found = []
    for checkpointing in (False, True):
        model = tiny("qwen3").train()
        if checkpointing:
            enable_checkpointing(model)
        found.append(gradients(model, hidden_states(model, ids, LENGTHS, packed=True).square().sum()))
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()


def test_the_attention_implementation_is_restored_also_after_an_error():
    model = tiny("qwen3")
    with pytest.raises(ZeroDivisionError), layout_attention(model):
        assert model.config._attn_implementation == "hone"
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"


def test_a_forward_call_without_a_layout_says_what_to_do():
    model = tiny("qwen3")
    with pytest.raises(RuntimeError, match="use_remove_padding=False"), layout_attention(model):
        model(random_ids([4])[None], use_cache=False)


def test_attention_dropout_is_refused_packed_and_applied_padded():
    model = tiny("qwen2").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    ids = random_ids(LENGTHS)
    first, second = (hidden_states(model, ids, LENGTHS, packed=False) for _ in range(2))
    assert not torch.equal(first, second)
    with pytest.raises(UserError, match="attention_dropout=0.5"):
        hidden_states(model, ids, LENGTHS, packed=True)
