"""Thousands of requests of all kinds, some of them given up: each is answered as if alone, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import random
import resource

import pytest

from hone.models import forward
from hone.rollout.hf import next_tokens
from hone.rollout.interface import Completion, Sampling
from tests.models_of_families import random_ids, tiny
from tests.rollout.test_hf_engine import EOS, generate, make_engine
from tests.rollout.test_stop_strings import Letters

Requests = list[tuple[list[int], Sampling]]


def mixed(count: int, seed: int) -> Requests:
    """Prompts of 1 to 60 tokens, some of them equal and some that begin like another, and every way to draw."""
    drawn = random.Random(seed)
    earlier = [random_ids([drawn.randrange(1, 30)], seed=i).tolist() for i in range(20)]
    requests = []
    for i in range(count):
        prompt = random_ids([drawn.choice([1, 2, 5, 12, 25, 60])], seed=1000 + i).tolist()
        prompt = drawn.choice([prompt, earlier[i % 20], [*earlier[i % 20], *prompt]])[:60]
        how = {
            "temperature": drawn.choice([0.0, 0.7, 1.0, 1.5]),
            "top_k": drawn.choice([-1, -1, 5]),
            "top_p": drawn.choice([1.0, 1.0, 0.8]),
            "min_p": drawn.choice([0.0, 0.0, 0.1]),
            "repetition_penalty": drawn.choice([1.0, 1.0, 1.0, 1.3]),
            "ignore_eos": drawn.random() < 0.2,
            "stop": drawn.choice([(), (), ("A", "QR")]),
            "stop_token_ids": drawn.choice([(), (), (5, 9)]),
        }
        requests.append((prompt, Sampling(max_tokens=drawn.choice([1, 2, 3, 8, 20]), seed=i, **how)))
    return requests


async def with_cancellations(engine, requests: Requests, given_up: set[int], seed: int) -> list[Completion | None]:
    """`given_up` are cancelled at random moments; None for those that it hits before they are done."""
    drawn = random.Random(seed)
    tasks = [asyncio.create_task(engine.generate(prompt, sampling)) for prompt, sampling in requests]
    left = sorted(given_up)
    while left:
        await asyncio.sleep(0)
        for index in [left.pop(drawn.randrange(len(left))) for _ in range(min(len(left), drawn.randrange(3)))]:
            tasks[index].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(r, (Completion, asyncio.CancelledError)) for r in results)
    return [r if isinstance(r, Completion) else None for r in results]


def run(engine, requests: Requests, given_up: set[int], seed: int = 0) -> list[Completion | None]:
    results = asyncio.run(with_cancellations(engine, requests, given_up, seed))
    assert {i for i, result in enumerate(results) if result is None} <= given_up
    for (_, sampling), completion in zip(requests, results, strict=True):
        if completion is not None:
            assert 1 <= len(completion.token_ids) <= sampling.max_tokens
            assert completion.stop_reason == "stop" or len(completion.token_ids) == sampling.max_tokens
            assert sampling.ignore_eos or EOS not in completion.token_ids[:-1]
            assert len(completion.logprobs) == len(completion.versions) == len(completion.token_ids)
    assert_nothing_is_lost(engine)
    return results


def assert_nothing_is_lost(engine) -> None:
    assert not engine.busy and not engine.waiting and not engine.prompts
    assert len(engine.slots.rows) <= engine.max_num_seqs
    assert {r for r in engine.slots.rows if r is not None} == set(engine.slots.parked)


def crowded(slots: int, **options):
    return make_engine(tiny("qwen3"), max_num_seqs=slots, max_num_batched_tokens=40, tokenizer=Letters(), **options)


@pytest.mark.parametrize("chunked", [True, False])
def test_all_requests_are_answered_as_if_each_were_alone_or_cancelled(chunked):
    requests = mixed(120, seed=1)
    given_up = set(random.Random(2).sample(range(120), 20))
    results = run(crowded(24, enable_chunked_prefill=chunked), requests, given_up)
    assert 1 <= sum(result is None for result in results) <= 20
    for request, found in list(zip(requests, results, strict=True))[::8]:
        if found is not None:
            (alone,) = generate(make_engine(tiny("qwen3"), tokenizer=Letters()), [request])
            assert found.token_ids == alone.token_ids and found.stop_reason == alone.stop_reason
            assert found.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


@pytest.mark.usefixtures("token_by_token")
def test_a_cancelled_request_is_out_of_the_very_next_pass(monkeypatch):
    engine = make_engine(tiny("qwen3"), max_num_seqs=4)
    tokens = []

    def counted(model, input_ids, layout, index=None):
        tokens.append(len(input_ids))
        return forward.run_layout(model, input_ids, layout, index)

    monkeypatch.setattr(next_tokens, "run_layout", counted)

    async def go() -> None:
        sampling = Sampling(max_tokens=40, ignore_eos=True)
        tasks = [asyncio.create_task(engine.generate([2, 3, 4 + i], sampling)) for i in range(6)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(engine.running) == 4 and len(engine.waiting) == 2
        tasks[1].cancel()
        tasks[4].cancel()  # of those that wait
        await asyncio.sleep(0)
        del tokens[:]
        await asyncio.sleep(0)
        assert tokens[0] in (3, 4)  # the prompt of the last one, in the slot that is free, or rows with it
        assert len(engine.running) == 4 and not engine.waiting
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del tokens[:]
        for _ in range(3):
            await asyncio.sleep(0)
        assert not tokens

    asyncio.run(go())
    assert_nothing_is_lost(engine)


@pytest.mark.slow
def test_ten_thousand_requests_with_hundreds_given_up_and_memory_stays_flat():
    engine, other = crowded(100), tiny("qwen3")
    pieces, held = 10, []
    for piece in range(pieces):
        requests = mixed(1000, seed=piece)
        given_up = set(random.Random(piece).sample(range(1000), 60))
        results = run(engine, requests, given_up, seed=piece)
        assert sum(result is None for result in results) >= 20
        for request, found in list(zip(requests, results, strict=True))[::100]:
            if found is not None:
                (alone,) = generate(make_engine(other, tokenizer=Letters()), [request])
                assert found.token_ids == alone.token_ids
        del requests, results
        gc.collect()
        held.append((len(gc.get_objects()), engine.cache.nbytes, peak_resident()))
    objects, cache, resident = zip(*held, strict=True)
    assert cache[-1] == cache[1]
    assert objects[-1] - objects[2] < 1000  # after 7000 more requests
    assert resident[-1] - resident[2] < 40_000  # KiB


def peak_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
