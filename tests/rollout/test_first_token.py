"""FIRE sampling: the first token of a response is drawn at a temperature of its own, the others as configured."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from hone.agents import LLM
from hone.rollout.interface import Completion, Sampling
from tests.models_of_families import tiny
from tests.rollout.test_hf_engine import generate, make_engine, prompts

HOT = Sampling(max_tokens=4, temperature=0.8, top_k=3, first_temperature=30.0)


def logprobs_after(model, ids: list[int], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        return (model(torch.tensor([ids]), use_cache=False).logits[0, -1] / temperature).log_softmax(-1)


@pytest.mark.parametrize("max_num_seqs", [3, 100])
def test_the_first_log_prob_is_that_of_the_hot_uncut_distribution_and_the_rest_are_as_configured(max_num_seqs):
    requests = [(p, dataclasses.replace(HOT, seed=i)) for i, p in enumerate(prompts())]
    model = tiny("qwen3")
    for (prompt, _), completion in zip(requests, generate(make_engine(model, max_num_seqs=max_num_seqs), requests)):
        first, second = completion.token_ids[:2]
        assert completion.logprobs[0] == pytest.approx(float(logprobs_after(model, prompt, 30.0)[first]), abs=5e-5)
        cut = logprobs_after(model, [*prompt, first], 0.8)
        best = cut.topk(3)
        assert second in best.indices.tolist()
        expected = float(cut[second] - best.values.logsumexp(0))
        assert completion.logprobs[1] == pytest.approx(expected, abs=5e-5)


def test_first_tokens_spread_over_the_vocabulary_and_later_ones_do_not():
    prompt = prompts()[0]
    cold = dataclasses.replace(HOT, top_k=1, ignore_eos=True)
    draws = generate(make_engine(tiny("qwen3")), [(prompt, dataclasses.replace(cold, seed=i)) for i in range(200)])
    firsts = {c.token_ids[0]: {d.token_ids[1] for d in draws if d.token_ids[0] == c.token_ids[0]} for c in draws}
    assert len(firsts) > 40 and all(len(seconds) == 1 for seconds in firsts.values())


class Recorder:
    """An engine that keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Sampling] = []

    async def generate(self, prompt_ids, sampling):
        self.asked.append(sampling)
        return Completion([1], [0.0], "stop", [0])


def test_only_the_first_turn_of_a_trajectory_begins_hot():
    engine = Recorder()
    llm = LLM(engine, HOT)  # type: ignore[arg-type]

    async def two_turns() -> None:
        await llm.generate([1])
        await llm.generate([1, 2])

    asyncio.run(two_turns())
    assert [sampling.first_temperature for sampling in engine.asked] == [30.0, None]
