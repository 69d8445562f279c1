"""On a CPU the running rows are decoded in parts, in threads side by side: nobody can tell from the completions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from hone.rollout.hf import decode
from hone.rollout.hf.cache import DecodeLayout
from hone.rollout.hf.decode import Decoder
from hone.rollout.hf.next_tokens import Drawn, NextTokens
from hone.rollout.interface import Sampling
from tests.models.test_recorded import with_moving_rope
from tests.models_of_families import FAMILIES, tiny
from tests.rollout.test_hf_engine import generate, make_engine, prompts, sampled

Use = Callable[[int], None]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    monkeypatch.setattr(decode, "ROWS_OF_A_PART", 2)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 5, "repetition_penalty": 1.3}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_completions_are_those_of_one_thread(cores: Use, family: str, options: dict) -> None:
    requests = sampled(3, **options)
    requests = [(p, s.__class__(**{**vars(s), "max_tokens": 3 + i})) for i, (p, s) in enumerate(requests)]
    cores(1)
    expected = generate(make_engine(tiny(family)), requests)
    for count in (2, 4):
        cores(count)
        for found, wanted in zip(generate(make_engine(tiny(family)), requests), expected, strict=True):
            assert found.token_ids == wanted.token_ids
            assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
            assert (found.stop_reason, found.versions) == (wanted.stop_reason, wanted.versions)


def test_the_parts_are_threads_and_cover_every_row_once(cores: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []
    original = DecodeLayout.__init__

    def noted(self: DecodeLayout, *arguments: object, **options: object) -> None:
        original(self, *arguments, **options)
        seen.append((threading.get_ident(), self.first, self.first + len(self.positions)))

    monkeypatch.setattr(DecodeLayout, "__init__", noted)
    cores(3)
    generate(make_engine(tiny("qwen3")), sampled(1, ignore_eos=True, max_tokens=2))
    assert sorted(part for _, *part in seen) == [[0, 2], [2, 4], [4, 6]]
    assert len(prompts()) == 6
    assert threading.get_ident() not in {thread for thread, *_ in seen}


def test_what_the_model_attended_with_before_is_restored(cores: Use) -> None:
    cores(4)
    model = tiny("qwen3")
    before = model.config._attn_implementation
    generate(make_engine(model), sampled(4))
    assert model.config._attn_implementation == before


def test_frequencies_of_the_longest_position_are_not_computed_by_two_threads_at_once(cores: Use) -> None:
    cores(2)
    assert len(make_engine(tiny("llama")).decoder.parts(256)) == 2
    assert len(make_engine(with_moving_rope()).decoder.parts(256)) == 1


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every call of the decoder, the tokens that its rows drew; no call ends because time is over."""
    monkeypatch.setattr(decode, "PATIENCE", 60)
    counts: list[int] = []
    original = Decoder.run

    def noted(self: Decoder, rows: list, version: int, *, once: bool) -> None:
        before = sum(len(row.token_ids) for row in rows)
        original(self, rows, version, once=once)
        counts.append(sum(len(row.token_ids) for row in rows) - before)

    monkeypatch.setattr(Decoder, "run", noted)
    return counts


@pytest.mark.parametrize("count", [1, 3])
def test_parts_do_not_wait_for_each_other_until_a_row_is_finished(cores: Use, drawn: list[int], count: int) -> None:
    cores(count)
    requests = sampled(1, ignore_eos=True, max_tokens=20)
    requests[0] = (requests[0][0], Sampling(ignore_eos=True, max_tokens=8))
    generate(make_engine(tiny("qwen3")), requests)
    # The first token shows how long one takes; then as many as the row with the least room may draw.
    assert drawn == [6, 6 * 6, 5, 5 * 11]


def test_where_a_token_may_end_a_row_all_parts_look_after_each(cores: Use, drawn: list[int]) -> None:
    """Else it would depend on which thread is faster what is computed together."""
    requests = sampled(1, max_tokens=20)
    cores(3)
    generate(make_engine(tiny("qwen3")), requests)
    assert len(drawn) == 19 and max(drawn) <= 6
    del drawn[:]
    cores(1)
    generate(make_engine(tiny("qwen3")), requests)
    assert len(drawn) < 19


def test_who_has_other_work_has_its_turn_after_every_token(drawn: list[int]) -> None:
    engine, turns = make_engine(tiny("qwen3")), []

    async def tool() -> None:
        while True:
            turns.append(len(drawn))
            await asyncio.sleep(0)

    async def go() -> None:
        other = asyncio.create_task(tool())
        await asyncio.gather(*(engine.generate(*request) for request in sampled(1, ignore_eos=True, max_tokens=20)))
        other.cancel()

    asyncio.run(go())
    assert drawn == [6] * 19
    assert set(range(20)) <= set(turns)


def test_a_part_that_fails_stops_the_others(cores: Use, drawn: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    cores(2)
    original, calls = NextTokens.draw, []

    def fails(self: NextTokens, rows: list, *arguments: object, **options: object) -> Drawn:
        calls.append(len(rows))
        if len(calls) == 20:
            raise RuntimeError("no memory")
        return original(self, rows, *arguments, **options)

    monkeypatch.setattr(NextTokens, "draw", fails)
    engine = make_engine(tiny("qwen3"))
    with pytest.raises(RuntimeError, match="no memory"):
        generate(engine, sampled(1, ignore_eos=True, max_tokens=50))
    assert len(calls) < 50 and not engine.busy


def test_who_is_finished_has_an_answer_though_the_others_then_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no room to close the gap")

    engine = make_engine(tiny("qwen3"))
    requests = sampled(1, ignore_eos=True, max_tokens=20)
    requests[0] = (requests[0][0], Sampling(ignore_eos=True, max_tokens=5))
    monkeypatch.setattr(engine.cache, "copy", fails)

    async def go() -> list:
        return await asyncio.gather(*(engine.generate(*r) for r in requests), return_exceptions=True)

    first, *others = asyncio.run(asyncio.wait_for(go(), 60))
    assert len(first.token_ids) == 5
    assert all(isinstance(other, MemoryError) for other in others)


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_the_same_requests_on_the_same_cores_give_the_same_bits(cores: Use, ignore_eos: bool) -> None:
    cores(3)
    requests = [(p, replace(s, max_tokens=3 + 2 * i)) for i, (p, s) in enumerate(sampled(3, ignore_eos=ignore_eos))]
    first, *others = [[c.logprobs for c in generate(make_engine(tiny("qwen3")), requests)] for _ in range(5)]
    assert all(found == first for found in others)
