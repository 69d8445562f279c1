"""Prompts computed once for all their responses: hidden states and gradients are those of whole sequences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.models import joined_prompts, shared_prompts
from hone.models.forward import hidden_states, shared_hidden_states
from hone.models.load import enable_checkpointing
from hone.models.shared_prompts import SharedPromptLayout
from tests.models_of_families import FAMILIES, random_ids, tiny


@pytest.fixture(autouse=True, params=["joined", "masked"], scope="module")
def way(request):
    """Both ways of attention; a CPU takes the joined one where it can."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "masked":
            patch.setattr(shared_prompts, "can_join", lambda *_: False)
        yield request.param


def sequences(prompts: list[int], responses: list[tuple[int, int]], seed: int = 0):
    """Ids laid end to end, lengths, prompt lengths and families of (prompt, response length) pairs."""
    texts = [random_ids([n], seed + i) for i, n in enumerate(prompts)]
    parts = [torch.cat([texts[p], random_ids([n], seed + 100 + i)]) for i, (p, n) in enumerate(responses)]
    lengths = [len(part) for part in parts]
    return torch.cat(parts), lengths, [prompts[p] for p, _ in responses], [p for p, _ in responses]


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


MIXED = ([5, 12, 1, 12, 30], [(0, 4), (0, 9), (1, 3), (1, 0), (2, 7), (3, 11), (3, 11), (3, 1), (4, 2), (1, 8)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_states_and_gradients_equal_those_of_whole_sequences(family, seed):
    model = tiny(family, seed)
    ids, lengths, prompt_lengths, families = sequences(*MIXED, seed)
    index = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[: len(ids) // 2]
    expected = hidden_states(model, ids, lengths, packed=True)[index]
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))
    expected_gradient = gradients(model, (weights * expected).sum())
    found = shared_hidden_states(model, ids, lengths, prompt_lengths, families, index)
    gradient = gradients(model, (weights * found).sum())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert (gradient - expected_gradient).norm() <= 1e-5 * expected_gradient.norm()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_sizes(data):
    prompts = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    pairs = st.tuples(st.integers(0, len(prompts) - 1), st.integers(0, 20))
    ids, lengths, prompt_lengths, families = sequences(prompts, data.draw(st.lists(pairs, min_size=1, max_size=8)))
    model, index = tiny("qwen3"), torch.arange(len(ids))
    with torch.no_grad():
        expected = hidden_states(model, ids, lengths, packed=True)
        found = shared_hidden_states(model, ids, lengths, prompt_lengths, families, index)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_every_distinct_prompt_is_computed_once():
    _, lengths, prompt_lengths, families = sequences([10, 20], [(0, 3)] * 8 + [(1, 5)] * 4)
    layout = SharedPromptLayout(lengths, prompt_lengths, families)
    assert len(layout.tokens) == 10 + 20 + 8 * 3 + 4 * 5
    assert layout.tokens.unique().numel() == len(layout.tokens)


def test_a_response_never_sees_another_one():
    model = tiny("qwen3")
    ids, lengths, prompt_lengths, families = sequences([6], [(0, 4), (0, 5), (0, 5)])
    other = ids.clone()
    other[6:10] = (other[6:10] + 1) % 60 + 2  # the first response
    with torch.no_grad():
        before, after = (
            shared_hidden_states(model, x, lengths, prompt_lengths, families, torch.arange(len(ids)))
            for x in (ids, other)
        )
    assert not torch.equal(before[6:10], after[6:10])
    assert torch.equal(before[:6], after[:6]) and torch.equal(before[10:], after[10:])


def test_gradient_checkpointing_gives_the_same_gradient():
    joined_prompts._kernels_work.cache_clear()  # tried within a pass whose saved tensors are counted
    ids, lengths, prompt_lengths, families = sequences(*MIXED)
    found = []
    for checkpointing in (False, True):
        model = tiny("qwen3").train()
        if checkpointing:
            enable_checkpointing(model)
        states = shared_hidden_states(model, ids, lengths, prompt_lengths, families, torch.arange(len(ids)))
        found.append(gradients(model, states.square().sum()))
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()


def test_the_joined_way_is_taken_where_nothing_speaks_against_it(way, monkeypatch):
    taken = []
    attend = joined_prompts.JoinedPrompts.attend

    def counting(*arguments):
        taken.append(arguments)
        return attend(*arguments)

    monkeypatch.setattr(joined_prompts.JoinedPrompts, "attend", counting)
    ids, lengths, prompt_lengths, families = sequences(*MIXED)
    for family in ("qwen3", "gemma2"):  # gemma2 soft-caps its scores
        shared_hidden_states(tiny(family), ids, lengths, prompt_lengths, families, torch.arange(len(ids)))
        assert bool(taken) == (family == "qwen3" and way == "joined")
        taken.clear()
