"""Draws follow the distribution they claim, and its cuts are those of a plain loop."""

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from hone.rollout.hf.sampling import RowSampling, penalise_repetition, sample, truncate, uniforms
from hone.rollout.interface import Sampling

VOCAB = 12


def rows(count: int, **how) -> RowSampling:
    return RowSampling.of([Sampling(max_tokens=1, **how)] * count, torch.device("cpu"))


def kept_by_a_loop(logits, top_k, top_p, min_p) -> list[int]:
    order = sorted(range(len(logits)), key=lambda i: -float(logits[i]))
    order = order[:top_k] if top_k > 0 else order
    probabilities = torch.tensor([float(logits[i]) for i in order], dtype=torch.float64).softmax(0).tolist()
    kept, mass = [], 0.0
    for token, probability in zip(order, probabilities, strict=True):
        if (mass < top_p or not kept) and probability >= min_p * probabilities[0]:
            kept.append(token)
        mass += probability
    return sorted(kept)


def test_the_largest_number_draws_no_token_that_is_cut_off():
    logits = torch.tensor([[1.0, 0.5, 0.2, -1.0]]).expand(64, -1) * torch.linspace(0.1, 3, 64)[:, None]
    token, logprobs = sample(logits, rows(64, top_k=3), torch.ones(64))  # as a product that rounds up to the total
    assert (token < 3).all() and logprobs.isfinite().all()


@pytest.mark.parametrize("top_k", [-1, 0, 1, 4])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("min_p", [0.0, 0.2])
def test_the_kept_tokens_are_those_of_a_plain_loop(top_k, top_p, min_p):
    logits = torch.randn(20, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    cut = truncate(logits, rows(20, top_k=top_k, top_p=top_p, min_p=min_p))
    for row, found in zip(logits, cut, strict=True):
        assert found.isfinite().nonzero().squeeze(1).tolist() == kept_by_a_loop(row, top_k, top_p, min_p)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}])
def test_frequencies_and_logprobs_are_those_of_the_distribution(options):
    count = 40_000
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    options_of_rows = rows(count, **options)
    uniform = torch.from_numpy(uniforms(np.arange(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)))
    tokens, logprobs = sample(logits.expand(count, -1), options_of_rows, uniform)
    scaled = (logits / options.get("temperature", 1.0))[None]
    expected = truncate(scaled, rows(1, **options))[0].log_softmax(-1)
    torch.testing.assert_close(logprobs, expected[tokens], rtol=1e-5, atol=1e-6)
    counts = torch.bincount(tokens, minlength=VOCAB).double()
    wanted = expected.double().exp() * count
    assert counts[wanted == 0].sum() == 0
    chi_square = ((counts - wanted)[wanted > 0].square() / wanted[wanted > 0]).sum()
    assert chi_square < 40  # 11 degrees of freedom: the chance of more is under 1e-4


def test_greedy_takes_the_best_token_and_its_plain_logprob():
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(2))
    tokens, logprobs = sample(logits, rows(5, temperature=0.0), torch.full((5,), 0.99))
    assert torch.equal(tokens, logits.argmax(-1))
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).max(-1).values)


def test_uniform_numbers_are_reproducible_and_spread():
    seeds, positions = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.uint64))
    drawn = uniforms(seeds.ravel(), positions.ravel())
    assert np.array_equal(drawn, uniforms(seeds.ravel(), positions.ravel()))
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.005 and abs(drawn.var() - 1 / 12) < 0.002
    grid = drawn.reshape(300, 300)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02


def test_the_repetition_penalty_is_that_of_transformers():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(3))
    seen = [[1, 2, 2], [5, 6, 7], [0, 0, 11]]
    found = penalise_repetition(logits, seen, [1.3, 1.0, 0.8])
    for row, penalty in ((0, 1.3), (1, 1.0), (2, 0.8)):
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([seen[row]]), logits[row : row + 1].clone())
        torch.testing.assert_close(found[row], expected[0])
