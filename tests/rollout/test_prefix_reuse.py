"""The next turn of a conversation computes only what is new, and gives what it would give if it computed all."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from hone.rollout.hf.parked import Parked
from hone.rollout.hf.request import Request
from hone.rollout.hf.slots import Slots
from hone.rollout.interface import Completion, Sampling
from tests.models_of_families import FAMILIES, random_ids, tiny
from tests.rollout.test_hf_engine import generate, make_engine, prompts

ANSWER = [7, 33, 21]  # what is written behind a turn


@dataclass
class Conversation:
    """Three turns; `asked` are the prompts and `answers` what came."""

    prompt: list[int]
    seed: int
    asked: list[list[int]] = field(default_factory=list)
    answers: list[Completion] = field(default_factory=list)

    async def run(self, engine, turns: int = 3, tokens: int = 8) -> None:
        ids = list(self.prompt)
        for turn in range(turns):
            sampling = Sampling(max_tokens=tokens, seed=1000 * self.seed + turn)
            completion = await engine.generate(ids, sampling)
            self.asked.append(list(ids))
            self.answers.append(completion)
            ids += [*completion.token_ids, *ANSWER[: 1 + (self.seed + turn) % 3]]
            for _ in range((self.seed * 7 + turn) % 4):  # tools take different times
                await asyncio.sleep(0)


def converse(engine, count: int = 8, **how) -> list[Conversation]:
    made = [Conversation(random_ids([3 + i % 5], seed=i).tolist(), i) for i in range(count)]

    async def all_of_them() -> None:
        await asyncio.gather(*[one.run(engine, **how) for one in made])

    asyncio.run(all_of_them())
    return made


def assert_as_without_reuse(family: str, conversations: list[Conversation]) -> None:
    """Every turn by itself in an engine that has seen nothing."""
    for one in conversations:
        for turn, (ids, found) in enumerate(zip(one.asked, one.answers, strict=True)):
            sampling = Sampling(max_tokens=8, seed=1000 * one.seed + turn)
            (expected,) = generate(make_engine(tiny(family)), [(ids, sampling)])
            assert found.token_ids == expected.token_ids
            assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_that_go_on_from_kept_keys_are_those_that_compute_everything(family):
    engine = make_engine(tiny(family))
    conversations = converse(engine, 6)
    assert_as_without_reuse(family, conversations)
    written = sum(len(one.asked[-1]) - sum(len(a.token_ids) for a in one.answers[:-1]) for one in conversations)
    last_tokens = 2 * len(conversations)  # each turn's is sampled, and computed with what comes behind it
    assert engine.prompt_tokens == written + last_tokens


def test_without_room_for_all_conversations_some_compute_everything_and_all_are_right():
    engine = make_engine(tiny("qwen3"), max_num_seqs=3, max_num_batched_tokens=16)
    conversations = converse(engine, 10)
    assert_as_without_reuse("qwen3", conversations)
    assert len(engine.slots.rows) == 3 and not engine.busy
    everything = sum(len(ids) for one in conversations for ids in one.asked)
    assert engine.prompt_tokens <= everything


def test_what_differs_in_one_token_is_computed_from_its_beginning():
    engine, prompt = make_engine(tiny("qwen3")), random_ids([60], seed=3).tolist()
    (first,) = generate(engine, [(prompt, Sampling(max_tokens=8))])
    assert engine.prompt_tokens == 60
    generate(engine, [([*prompt, *first.token_ids, 5, 6], Sampling(max_tokens=8))])
    assert engine.prompt_tokens == 60 + 3  # the last sampled token and two new ones
    generate(engine, [([*prompt[:-1], 9, *first.token_ids, 5, 6], Sampling(max_tokens=8))])
    assert engine.prompt_tokens == 63 + len(prompt) + len(first.token_ids) + 2  # other tokens, nothing is kept


def test_all_samples_of_a_second_turn_and_other_branches_go_on_from_one_row():
    engine, prompt = make_engine(tiny("qwen3")), random_ids([20], seed=3).tolist()
    (first,) = generate(engine, [(prompt, Sampling(max_tokens=6, ignore_eos=True))])
    begun = [*prompt, *first.token_ids]
    before = engine.prompt_tokens
    requests = [
        ([*begun, *more], Sampling(max_tokens=12, seed=10 * i + k))
        for i, more in enumerate([[5], [5, 6], [8, 9]])
        for k in range(3)
    ]
    found = generate(engine, requests)
    assert engine.prompt_tokens - before == 2 + 3 + 3
    expected = generate(make_engine(tiny("qwen3")), requests)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]


def second_turn(engine, between) -> int:
    """Prompt tokens that the second turn computes, of 10 + 5, after something was done between the two."""
    prompt = random_ids([10], seed=3).tolist()
    (first,) = generate(engine, [(prompt, Sampling(max_tokens=5, ignore_eos=True))])
    asyncio.run(between(engine))
    before = engine.prompt_tokens
    ids = [*prompt, *first.token_ids, 4]
    (found,) = generate(engine, [(ids, Sampling(max_tokens=8, seed=5))])
    (expected,) = generate(make_engine(engine.model), [(ids, Sampling(max_tokens=8, seed=5))])
    assert found.token_ids == expected.token_ids
    return engine.prompt_tokens - before


async def nothing(engine) -> None: ...


async def other_weights(engine) -> None:
    await engine.update_weights(tiny("qwen3", seed=1).state_dict().items(), 1)


async def sleep(engine) -> None:
    await engine.sleep()
    await engine.wake()


async def wake(engine) -> None:
    await engine.wake()


@pytest.mark.parametrize(("between", "computed"), [(nothing, 2), (other_weights, 16), (sleep, 16), (wake, 16)])
def test_keys_of_other_weights_or_that_were_freed_are_not_used(between, computed):
    assert second_turn(make_engine(tiny("qwen3")), between) == computed


@pytest.mark.usefixtures("token_by_token")
def test_a_row_that_saw_two_versions_is_not_gone_on_from():
    engine, prompt = make_engine(tiny("qwen3")), random_ids([10], seed=3).tolist()

    async def run() -> Completion:
        task = asyncio.create_task(engine.generate(prompt, Sampling(max_tokens=9, ignore_eos=True)))
        for _ in range(4):
            await asyncio.sleep(0)
        await other_weights(engine)
        return await task

    first = asyncio.run(run())
    assert set(first.versions) == {0, 1} and not len(engine.slots.parked)


def test_parked_rows_give_way_to_waiting_requests():
    engine = make_engine(tiny("qwen3"), max_num_seqs=2)
    for seed in range(6):
        generate(engine, [(p, Sampling(max_tokens=4, seed=seed)) for p in prompts(seed)])
        assert len(engine.slots.parked) <= 2 and len(engine.slots.rows) == 2


def row(ids: list[int], tokens: list[int]) -> Request:
    made = Request(tuple(ids), Sampling(max_tokens=9), frozenset(), None, None)  # type: ignore[arg-type]
    made.token_ids = tokens
    return made


def test_the_longest_beginning_is_that_of_a_search_through_all_rows():
    drawn = random.Random(0)
    parked, kept = Parked(), []
    for _ in range(400):
        ids = [drawn.randrange(3) for _ in range(drawn.randrange(1, 7))]
        tokens = [drawn.randrange(3) for _ in range(drawn.randrange(1, 4))]
        made = row(ids, tokens)
        former = parked.add(made)
        kept = [other for other in kept if other.cached_ids != made.cached_ids] + [made]
        assert former is None or former.cached_ids == made.cached_ids
        if len(kept) > 20:
            assert parked.oldest() is kept[0]
            parked.remove(kept.pop(0))
        assert list(parked) == kept
        prompt = tuple(drawn.randrange(3) for _ in range(drawn.randrange(1, 10)))
        fitting = [r for r in kept if len(r.cached_ids) < len(prompt) and prompt[: r.cached] == r.cached_ids]
        assert parked.longest_beginning(prompt) is max(fitting, key=lambda r: r.cached, default=None)


def test_slots_move_data_to_where_their_rows_are():
    """Random comings and goings, beside a store of which each move copies whole slots."""
    drawn = random.Random(1)
    slots, store, number = Slots(), [None] * 100, 0
    filling: list[Request] = []
    for _ in range(3000):
        running = slots.running_rows
        choice = drawn.randrange(4)
        if choice == 0 and len(running) + len(filling) < 12:
            new = [row([number + i], [1]) for i in range(drawn.randrange(1, 4))]
            number += 3
            parked = list(slots.parked)
            if parked and drawn.random() < 0.5:
                slots.take_over(new[0], drawn.choice(parked))
            slots.enter(r for r in new if r.slot < 0)
            filling += new
            for r in new:
                store[r.slot] = r
        elif choice == 1 and filling:
            begun = [filling.pop(0) for _ in range(drawn.randrange(1, len(filling) + 1))]
            copy(store, slots.start(begun))
        elif running:
            done = drawn.sample(running, drawn.randrange(1, len(running) + 1))
            copy(store, slots.stop(done))
            for r in done:
                slots.park(r) if choice == 2 else slots.leave(r)
        for slot, r in enumerate(slots.rows):
            assert r is None or (r.slot == slot and store[slot] is r)
        assert all(slots.running_rows) and not set(slots.running_rows) & {*filling, *slots.parked}
        assert sum(r is not None for r in slots.rows) == slots.running + len(filling) + len(slots.parked)
    assert len(slots.rows) <= 12 + 3


def copy(store: list, moves: list[tuple[int, int]]) -> None:
    before = list(store)
    for source, target in moves:
        store[target] = before[source]


def test_the_samples_of_a_prompt_still_share_its_computation():
    engine = make_engine(tiny("qwen3"))
    requests = [(p, Sampling(max_tokens=3, seed=k)) for p in prompts() for k in range(8)]
    generate(engine, requests)
    assert engine.prompt_tokens == sum(len(p) for p in prompts())
