"""Several ranks generate: whole conversations on one engine each, and as many on every one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from hone.agents import LLM, Trajectory, register_agent
from hone.agents.registry import AGENTS
from hone.cluster.dealing import shares
from hone.data.prompts import Sample
from hone.rollout.interface import Completion, Sampling
from hone.workers.rollout import RolloutTask, TrajectoryStream

TURNS, PROMPTS, N = 3, 5, 3
TOKENS = 2


class Noting:
    """Answers after a while that depends on the request, and notes the first tokens of every prompt it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []  # (prompt, draw)
        self.lengths: list[int] = []

    async def generate(self, prompt_ids, sampling: Sampling) -> Completion:
        self.seen.append((prompt_ids[0], prompt_ids[1]))
        self.lengths.append(len(prompt_ids))
        await asyncio.sleep(0.001 * (sampling.seed % 5))
        return Completion([7] * TOKENS, [-1.0] * TOKENS, "length", [0] * TOKENS)


class Words:
    def decode(self, ids, **options) -> str:
        return " ".join(map(str, ids))


@pytest.fixture
def talkative() -> Iterator[None]:
    before = dict(AGENTS)

    @register_agent("talkative")
    class Talkative:
        async def run(self, sample: Sample, llm: LLM) -> Trajectory:
            ids = list(sample.prompt_ids)
            for _ in range(TURNS):
                ids += (await llm.generate(ids)).token_ids
            response = ids[len(sample.prompt_ids) :]
            size = len(response)
            return Trajectory(list(sample.prompt_ids), response, [1] * size, [-1.0] * size, [0] * size, "length", TURNS)

    yield
    AGENTS.clear()
    AGENTS.update(before)


def tasks() -> list[RolloutTask]:
    """N draws of each prompt; a prompt's tokens are its number and the draw's."""
    made = []
    for prompt in range(PROMPTS):
        for draw in range(N):
            sample = Sample(prompt, [prompt, draw], [], "sums", None, {}, "talkative", uid=str(prompt))
            made.append(RolloutTask(len(made), sample, Sampling(max_tokens=TOKENS * TURNS, seed=7 * len(made))))
    return made


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_turns_of_a_conversation_are_on_one_engine_and_every_engine_has_as_many(ranks: int) -> None:
    engines = [Noting() for _ in range(ranks)]
    finished = {}
    for engine, share in zip(engines, shares(tasks(), ranks), strict=True):
        finished |= dict(TrajectoryStream(engine, Words(), max_model_len=64)(share))
    assert sorted(finished) == list(range(PROMPTS * N))
    homes = [Counter(engine.seen) for engine in engines]
    for task in tasks():
        conversation = tuple(task.sample.prompt_ids)
        assert sorted(home[conversation] for home in homes) == [0] * (ranks - 1) + [TURNS]
    counts = [len(home) for home in homes]
    assert max(counts) - min(counts) <= 1
    for engine in engines:
        assert Counter(engine.lengths) == {2 + TOKENS * turn: len(engine.lengths) // TURNS for turn in range(TURNS)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_responses_to_a_prompt_are_side_by_side(ranks: int) -> None:
    """At most one prompt is divided at each border between ranks."""
    homes = [{task.sample.prompt_ids[0] for task in share} for share in shares(tasks(), ranks)]
    assert sum(map(len, homes)) <= PROMPTS + ranks - 1
