"""The last layer's MLP computes the tokens whose states are read and no others, and the numbers stay what they were."""

import pytest
import torch

from hone.models.forward import hidden_states
from hone.models.last_layer import distinct_tokens
from hone.models.load import enable_checkpointing
from tests.models_of_families import FAMILIES, random_ids, tiny

LENGTHS = [5, 14, 3, 9]
INDEX = torch.tensor([3, 9, 9, 20, 12, 29, 30])  # as shared prompts have it: any order, some twice


def states_and_gradient(model, ids, read):
    model.zero_grad()
    states = read(model, ids)
    (states * torch.arange(states.numel()).view_as(states).cos()).sum().backward()
    return states.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def of_all(model, ids):
    return hidden_states(model, ids, LENGTHS, packed=True)[INDEX]


def of_read(model, ids):
    return hidden_states(model, ids, LENGTHS, INDEX, packed=True)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_that_are_read_and_their_gradients_stay_the_same(family, checkpointing):
    model, ids = tiny(family).train(), random_ids(LENGTHS)
    if checkpointing:
        enable_checkpointing(model)
    expected, expected_gradient = states_and_gradient(model, ids, of_all)
    found, gradient = states_and_gradient(model, ids, of_read)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (gradient - expected_gradient).norm() <= 1e-5 * expected_gradient.norm()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_mlp_of_the_last_layer_alone_sees_fewer_tokens(checkpointing):
    model, ids = tiny("qwen3").train(), random_ids(LENGTHS)
    if checkpointing:
        enable_checkpointing(model)
    seen = {0: [], 1: []}
    for layer, sizes in seen.items():
        projection = model.model.layers[layer].mlp.gate_proj
        projection.register_forward_hook(lambda module, args, output, sizes=sizes: sizes.append(args[0].shape[1]))
    states_and_gradient(model, ids, of_read)
    assert set(seen[0]) == {sum(LENGTHS)}
    assert set(seen[1]) == {len(INDEX.unique())}


def test_a_call_of_the_model_itself_computes_every_token_again():
    model, ids = tiny("llama"), random_ids([12])
    expected = model(ids[None], use_cache=False).logits
    hidden_states(model, ids, [12], torch.tensor([11]), packed=True)
    model.config._attn_implementation = "sdpa"
    assert torch.equal(model(ids[None], use_cache=False).logits, expected)


def test_a_layer_that_is_no_longer_the_last_computes_every_token():
    model, ids = tiny("llama"), random_ids([12])
    last = model.model.layers[-1]
    expected = hidden_states(model, ids, [12], packed=True)[11:]
    model.model.layers = model.model.layers[:1]
    hidden_states(model, ids, [12], torch.tensor([11]), packed=True)
    model.model.layers.append(last)
    found = hidden_states(model, ids, [12], torch.tensor([11]), packed=True)
    torch.testing.assert_close(found, expected)


def test_a_pass_that_fails_leaves_nothing_behind():
    model, ids = tiny("llama"), random_ids([12])
    expected = hidden_states(model, ids, [12], packed=True)
    broken = model.model.layers[-1].mlp.down_proj.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hidden_states(model, ids, [12], torch.tensor([11]), packed=True)
    broken.remove()
    assert torch.equal(hidden_states(model, ids, [12], packed=True), expected)


def test_tokens_are_told_apart_only_where_that_saves_something():
    assert distinct_tokens(torch.tensor([4, 1, 4]), 6).tolist() == [1, 4]
    assert distinct_tokens(torch.arange(6), 6) is None
