"""After a hand-over the engine's log-probs are the trainer's, or the run ends: shown with engines that are stale."""

from __future__ import annotations

import asyncio

import pytest
import torch

from hone.errors import UserError
from hone.models.heads import LogitHead
from hone.rollout.hf import HFEngine
from hone.rollout.interface import Completion
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.workers.probe import WeightProbe, allowed_difference
from tests.models_of_families import random_ids, tiny

PROMPTS = [piece.tolist() for piece in random_ids([4, 9, 2]).split([4, 9, 2])]


class Stale(HFEngine):
    """Reports success and keeps the weights that it has, after the first `takes` hand-overs."""

    takes = 0

    async def update_weights(self, weights, version):
        self.takes -= 1
        await super().update_weights(weights if self.takes >= 0 else None, version)


class StaleHead(HFEngine):
    """Takes all weights but the head's, as an engine does that packed a tied head once."""

    async def update_weights(self, weights, version):
        kept = self.model.get_output_embeddings().weight.clone()
        self.model.get_output_embeddings().weight = torch.nn.Parameter(kept)
        self.next_tokens.head = LogitHead.of(self.model)
        names = ("lm_head.weight",)
        await super().update_weights([(n, t) for n, t in weights if n not in names], version)


class NaN(HFEngine):
    async def generate(self, prompt_ids, sampling):
        drawn = await super().generate(prompt_ids, sampling)
        return Completion(drawn.token_ids, [float("nan")] * len(drawn.logprobs), drawn.stop_reason, drawn.versions)


class Bench:
    """A trainer, an engine with a model of its own, and the probe between them."""

    def __init__(self, kind: type[HFEngine], *, when: str = "first", temperature: float = 0.8, start: int = 5) -> None:
        options = ForwardOptions(temperature=temperature)
        self.trainer = TorchEngine(tiny("qwen3", seed=1), scoring=MicroBatching(2), options=options)
        self.engine = kind(tiny("qwen3", seed=start), eos_token_ids=[1], max_model_len=64)
        self.probe = WeightProbe(
            self.engine, self.trainer, PROMPTS, name="other", when=when, allowed=allowed_difference(torch.float32)
        )
        self.loop = asyncio.new_event_loop()
        self.passes = 0

    def hand_over(self, version: int) -> None:
        self.loop.run_until_complete(self.engine.update_weights(self.trainer.weights().items(), version))
        self.probe.after_hand_over(self.loop, version)

    def train(self) -> None:
        with torch.no_grad():
            for parameter in self.trainer.model.parameters():
                parameter += 0.02 * torch.randn_like(parameter)


@pytest.mark.parametrize("when", ["first", "always"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_an_engine_that_takes_its_weights_passes(when, temperature):
    bench = Bench(HFEngine, when=when, temperature=temperature)
    for version in range(4):
        bench.hand_over(version)
        bench.train()


@pytest.mark.parametrize("kind", [Stale, StaleHead, NaN])
def test_an_engine_that_is_stale_at_the_start_ends_the_run(kind):
    expected = r"rollout\.name=other does not have the trainer's weights after step 0 .*verify_weights=never"
    with pytest.raises(UserError, match=expected):
        Bench(kind).hand_over(0)


def test_an_engine_that_ignores_the_first_update_ends_the_run():
    bench = Bench(Stale)
    bench.engine.takes = 1
    bench.hand_over(0)
    bench.train()
    with pytest.raises(UserError, match="after step 1"):
        bench.hand_over(1)


def test_only_always_looks_at_later_hand_overs():
    for when in ("first", "always"):
        bench = Bench(Stale, when=when)
        bench.engine.takes = 2
        for version in range(2):
            bench.hand_over(version)
            bench.train()
        if when == "first":
            bench.hand_over(2)
        else:
            with pytest.raises(UserError, match="after step 2"):
                bench.hand_over(2)


def test_never_looks_at_nothing():
    bench = Bench(NaN, when="never")
    bench.hand_over(0)


def test_sixteen_bits_are_allowed_to_differ_by_their_rounding():
    assert allowed_difference(torch.float32, torch.float32) < allowed_difference(torch.float32, torch.bfloat16)
    bench = Bench(HFEngine)
    bench.engine.next_tokens.compute_dtype = torch.bfloat16
    with pytest.raises(UserError):
        bench.hand_over(0)
    bench = Bench(HFEngine)
    bench.engine.next_tokens.compute_dtype = torch.bfloat16
    bench.probe.allowed = allowed_difference(torch.bfloat16)
    bench.hand_over(0)
