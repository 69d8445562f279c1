"""Long prompts are computed in pieces between which running rows go on, and give what they give computed whole."""

from __future__ import annotations

import asyncio

import pytest

from hone.models import forward
from hone.rollout.hf import next_tokens
from hone.rollout.hf.cache import PrefillLayout
from hone.rollout.interface import Sampling
from tests.models_of_families import FAMILIES, random_ids, tiny
from tests.rollout.test_hf_engine import generate, make_engine

BUDGET = 16
LONG, SHORT = random_ids([75], seed=1).tolist(), random_ids([6], seed=2).tolist()


@pytest.fixture
def passes(monkeypatch) -> list[tuple[str, int]]:
    """(which, tokens) of each forward pass."""
    seen: list[tuple[str, int]] = []

    def counted(model, input_ids, layout, index=None):
        seen.append(("prompt" if isinstance(layout, PrefillLayout) else "rows", len(input_ids)))
        return forward.run_layout(model, input_ids, layout, index)

    monkeypatch.setattr(next_tokens, "run_layout", counted)
    return seen


def sizes(passes: list[tuple[str, int]], which: str) -> list[int]:
    return [tokens for kind, tokens in passes if kind == which]


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_give_what_the_whole_prompt_gives(family):
    requests = [
        (prompt, Sampling(max_tokens=10, seed=10 * i + k))
        for i, prompt in enumerate([SHORT, LONG, LONG[:33], SHORT[:2], LONG[5:70]])
        for k in range(3)
    ]
    whole = generate(make_engine(tiny(family)), requests)
    engine = make_engine(tiny(family), max_num_batched_tokens=BUDGET, max_num_seqs=7)
    for expected, found in zip(whole, generate(engine, requests), strict=True):
        assert found.token_ids == expected.token_ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert not engine.busy


def test_a_longer_prompt_than_the_budget_is_split_and_others_are_not(passes):
    engine = make_engine(tiny("qwen3"), max_num_batched_tokens=BUDGET)
    generate(
        engine, [(LONG, Sampling(max_tokens=1)), (SHORT, Sampling(max_tokens=1)), (LONG[:13], Sampling(max_tokens=1))]
    )
    # The last 11 tokens of the long one leave no room for 6, and 6 none for 13.
    assert sizes(passes, "prompt") == [16, 16, 16, 16, 11, 6, 13]


def test_without_chunks_a_prompt_is_computed_whole(passes):
    engine = make_engine(tiny("qwen3"), max_num_batched_tokens=BUDGET, enable_chunked_prefill=False)
    generate(engine, [(LONG, Sampling(max_tokens=1)), (SHORT, Sampling(max_tokens=1))])
    assert sizes(passes, "prompt") == [75, 6]


@pytest.mark.usefixtures("token_by_token")
@pytest.mark.parametrize(("chunked", "between"), [(True, 5), (False, 1)])
def test_running_rows_draw_a_token_after_every_piece(passes, chunked, between):
    engine = make_engine(tiny("qwen3"), max_num_batched_tokens=BUDGET, enable_chunked_prefill=chunked)
    sampling = Sampling(max_tokens=30, ignore_eos=True)

    async def run():
        short = asyncio.create_task(engine.generate(SHORT, sampling))
        for _ in range(4):
            await asyncio.sleep(0)
        del passes[:]
        return await asyncio.gather(short, engine.generate(LONG, sampling))

    asyncio.run(run())
    begun = passes.index(("prompt", 16 if chunked else 75))
    assert passes[begun : begun + 2 * between : 2] == [
        ("prompt", n) for n in ([16, 16, 16, 16, 11] if chunked else [75])
    ]
    assert passes[begun + 1 : begun + 2 * between : 2] == [("rows", 1)] * (between - 1) + [("rows", 2)]


@pytest.mark.usefixtures("token_by_token")
def test_a_request_that_is_cancelled_in_the_middle_of_its_prompt_leaves_nothing(passes):
    engine = make_engine(tiny("qwen3"), max_num_batched_tokens=BUDGET)
    sampling = Sampling(max_tokens=5, seed=3)

    async def run():
        tasks = [asyncio.create_task(engine.generate(LONG, sampling)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        assert engine.prompts and not engine.running
        tasks[0].cancel()
        await asyncio.sleep(0)
        others = await asyncio.gather(*tasks[1:])
        tasks = [asyncio.create_task(engine.generate(LONG[::-1], sampling)) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        return others

    others = asyncio.run(run())
    (expected,) = generate(make_engine(tiny("qwen3")), [(LONG, sampling)])
    assert [c.token_ids for c in others] == [expected.token_ids] * 2
    assert not engine.busy and not engine.waiting
    assert sum(r is not None for r in engine.slots.rows) == len(engine.slots.parked) == 1  # two equal rows, one kept


def test_a_later_piece_may_begin_behind_a_kept_turn(passes):
    engine = make_engine(tiny("qwen3"), max_num_batched_tokens=BUDGET)
    (first,) = generate(engine, [(SHORT, Sampling(max_tokens=4, ignore_eos=True))])
    del passes[:]
    ids = [*SHORT, *first.token_ids, *LONG[:40]]
    (found,) = generate(engine, [(ids, Sampling(max_tokens=6, seed=1))])
    assert sizes(passes, "prompt") == [16, 16, 9]
    (expected,) = generate(make_engine(tiny("qwen3")), [(ids, Sampling(max_tokens=6, seed=1))])
    assert found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
