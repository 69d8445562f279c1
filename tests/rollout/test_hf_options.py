"""Sampling options of the hf engine in a running batch, and what it does at the edges of its life."""

from __future__ import annotations

import asyncio
import dataclasses
import math

import numpy as np
import pytest
import torch

from hone.models import forward
from hone.models.attention import layout_attention
from hone.rollout.hf import next_tokens
from hone.rollout.hf.sampling import uniforms
from hone.rollout.interface import Sampling
from tests.models_of_families import tiny
from tests.rollout.test_hf_engine import generate, make_engine, prompts
from tests.rollout.test_sampling import kept_by_a_loop


def next_logits(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "mistral"])
def test_greedy_with_a_repetition_penalty_equals_transformers_generate(family):
    sampling = Sampling(max_tokens=20, temperature=0.0, repetition_penalty=1.4)
    found = generate(make_engine(tiny(family)), [(p, sampling) for p in prompts()])
    plain = generate(
        make_engine(tiny(family)), [(p, dataclasses.replace(sampling, repetition_penalty=1.0)) for p in prompts()]
    )
    reference = tiny(family)
    for prompt, completion in zip(prompts(), found, strict=True):
        expected = reference.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, repetition_penalty=1.4
        )
        assert completion.token_ids == expected[0, len(prompt) :].tolist()
    assert [c.token_ids for c in found] != [c.token_ids for c in plain]


OPTIONS = [
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.6, "temperature": 1.5},
    {"min_p": 0.3},
    {"repetition_penalty": 1.5},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 0.9, "repetition_penalty": 0.8},
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "top_k": 2},
    {"temperature": 1.2, "first_temperature": 5.0, "top_k": 4},
]


def by_a_plain_loop(
    logits: torch.Tensor, seen: list[int], s: Sampling, number: float
) -> tuple[int, list[float], float]:
    """The token that a random number in [0, 1) draws, the log-probs of all, and how near another token was."""
    values = logits.double().tolist()
    for token in set(seen):
        values[token] *= s.repetition_penalty if values[token] < 0 else 1 / s.repetition_penalty
    values = [value / (s.temperature or 1.0) for value in values]
    cuts = (s.top_k, s.top_p, s.min_p) if s.temperature else (0, 1.0, 0.0)
    kept = set(kept_by_a_loop(values, *cuts))
    total = sum(math.exp(values[token]) for token in kept)
    logprobs = [values[i] - math.log(total) if i in kept else -math.inf for i in range(len(values))]
    if not s.temperature:
        best = sorted(range(len(values)), key=lambda i: -values[i])
        return best[0], logprobs, values[best[0]] - values[best[1]]
    below, sums = 0.0, []
    for logprob in logprobs:
        below += math.exp(logprob)
        sums.append(below)
    return next(i for i, sum_ in enumerate(sums) if sum_ > number), logprobs, min(abs(sum_ - number) for sum_ in sums)


@pytest.mark.parametrize("how", [{}, {"max_num_seqs": 4, "max_num_batched_tokens": 5}])
def test_rows_with_different_options_run_together_each_as_a_plain_loop_draws(how):
    requests = [
        (prompts(k)[k % 6], Sampling(max_tokens=12, seed=7 * k, **OPTIONS[k % len(OPTIONS)])) for k in range(18)
    ]
    model, near = tiny("qwen3"), 0
    for (prompt, s), completion in zip(requests, generate(make_engine(model, **how), requests), strict=True):
        ids = list(prompt)
        for place, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            first = place == 0 and s.first_temperature is not None
            now = Sampling(1, s.first_temperature, repetition_penalty=s.repetition_penalty) if first else s
            number = uniforms(np.array([s.seed], dtype=np.uint64), np.array([place], dtype=np.uint64))[0]
            expected, logprobs, margin = by_a_plain_loop(next_logits(model, ids), ids, now, float(number))
            assert token == expected or margin < 1e-5
            assert logprob == pytest.approx(logprobs[token], abs=5e-5)
            near += margin < 1e-5
            ids.append(token)
    assert near < 3


def test_one_token_is_generated_by_the_prompts_pass_alone(monkeypatch):
    passes = []

    def counted(model, input_ids, layout, index=None):
        passes.append(len(input_ids))
        return forward.run_layout(model, input_ids, layout, index)

    monkeypatch.setattr(next_tokens, "run_layout", counted)
    completions = generate(
        make_engine(tiny("qwen3")), [(p, Sampling(max_tokens=1, temperature=0.0)) for p in prompts()]
    )
    assert len(passes) == 1
    model = tiny("qwen3")
    assert [c.token_ids for c in completions] == [[int(next_logits(model, p).argmax())] for p in prompts()]


def test_every_pass_stays_within_its_slots_and_its_budget_of_prompt_tokens(monkeypatch):
    engine = make_engine(tiny("qwen3"), max_num_seqs=3, max_num_batched_tokens=10)
    seen = []

    def counted(model, input_ids, layout, index=None):
        seen.append((type(layout).__name__, len(input_ids), len(engine.running)))
        return forward.run_layout(model, input_ids, layout, index)

    monkeypatch.setattr(next_tokens, "run_layout", counted)
    requests = [(prompts(k)[k % 6], Sampling(max_tokens=1 + k % 5, seed=k)) for k in range(40)]
    generate(engine, requests)
    assert all(running <= 3 for _, _, running in seen)
    longest = max(len(p) for p, _ in requests)
    assert all(tokens <= max(10, longest) for kind, tokens, _ in seen if kind == "PrefillLayout")
    assert all(tokens == running for kind, tokens, running in seen if kind == "DecodeLayout")


def test_a_cache_that_grows_under_running_rows_keeps_what_they_have_seen():
    # Prompts come in a few at a time (more slots), and long answers after short ones have begun (more columns).
    requests = [
        (prompts()[k % 6], Sampling(max_tokens=110 if k >= 6 else 20 + 4 * k, ignore_eos=True, seed=k))
        for k in range(9)
    ]
    together = generate(make_engine(tiny("qwen3"), max_num_seqs=5, max_num_batched_tokens=10), requests)
    for request, completion in zip(requests, together, strict=True):
        (alone,) = generate(make_engine(tiny("qwen3")), [request])
        assert completion.token_ids == alone.token_ids
        assert len(alone.token_ids) == request[1].max_tokens


@pytest.mark.parametrize(("prompt", "limit"), [([], 3), ([4], 0)])
def test_an_empty_prompt_or_no_tokens_to_make_is_refused(prompt, limit):
    with pytest.raises(ValueError, match="a prompt of at least one token"):
        generate(make_engine(tiny("qwen3")), [(prompt, Sampling(max_tokens=limit))])


@pytest.mark.usefixtures("token_by_token")
def test_the_cache_is_not_taken_from_under_running_rows():
    engine = make_engine(tiny("qwen3"))

    async def run():
        task = asyncio.create_task(engine.generate(prompts()[0], Sampling(max_tokens=20, ignore_eos=True)))
        for _ in range(4):
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="while completions are running"):
            await engine.sleep()
        return await task

    assert len(asyncio.run(run()).token_ids) == 20


@pytest.mark.usefixtures("token_by_token")
def test_tokens_know_the_weights_they_came_from_when_these_change_on_the_way():
    engine, other = make_engine(tiny("qwen3")), tiny("qwen3", seed=1)

    async def run():
        task = asyncio.create_task(engine.generate(prompts()[0], Sampling(max_tokens=20, ignore_eos=True)))
        for _ in range(6):
            await asyncio.sleep(0)
        await engine.update_weights(other.state_dict().items(), version=1)
        return await task

    versions = asyncio.run(run()).versions
    assert set(versions) == {0, 1} and versions == sorted(versions)


def test_generation_leaves_the_models_attention_as_it_was():
    model = tiny("gemma2")
    generate(make_engine(model), [(prompts()[0], Sampling(max_tokens=3))])
    assert model.config._attn_implementation == "eager"
    with layout_attention(model):
        assert model.config._attn_implementation == "hone"


def test_generation_does_not_touch_the_global_random_state():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    engine = make_engine(tiny("qwen3"))
    torch.manual_seed(4)
    generate(engine, [(prompts()[0], Sampling(max_tokens=5))])
    assert torch.equal(torch.rand(3), expected)
