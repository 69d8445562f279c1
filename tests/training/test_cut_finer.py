"""Micro-batches for several threads: every row once, never more at a time than one micro-batch may hold, all busy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.errors import UserError
from hone.training import side_by_side
from hone.training.micro_batches import MicroBatching, Prompts
from hone.training.side_by_side import cut_finer

rows_of = st.lists(st.integers(1, 40), max_size=60)
threads = st.integers(1, 4)


@pytest.fixture(autouse=True, scope="module")
def any_work_is_worth_a_thread():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "WORTH_A_THREAD", 1)
        yield


def tokens(rows: Sequence[int], lengths: Sequence[int], prompts: Prompts | None, padded: bool) -> int:
    if padded:
        return len(rows) * max(lengths[row] for row in rows)
    total = sum(lengths[row] for row in rows)
    if prompts is None:
        return total
    once = {prompts.families[row]: prompts.lengths[row] for row in rows}
    return total - sum(prompts.lengths[row] for row in rows) + sum(once.values())


@given(rows_of, st.integers(40, 200), threads, st.sampled_from(["packed", "padded", "shared"]))
def test_what_is_computed_at_a_time_keeps_within_the_budget(lengths, budget, most, kind):
    families = [i % 4 for i in range(len(lengths))]
    shared = [min(3 * family, *lengths) for family in families]  # as long as the shortest row at most
    prompts = Prompts(shared, families) if kind == "shared" else None
    cut = cut_finer(MicroBatching(max_tokens=budget, padded=kind == "padded"), lengths, prompts, most)
    assert sorted(row for passes in cut for rows in passes.plan for row in rows) == list(range(len(lengths)))
    for passes in cut:
        assert passes.at_once <= most
        sizes = sorted(tokens(rows, lengths, prompts, kind == "padded") for rows in passes.plan)
        assert sum(sizes[-passes.at_once :]) <= budget


@given(rows_of, st.integers(1, 20), threads)
def test_by_count_no_more_rows_are_computed_at_a_time_than_one_micro_batch_has(lengths, size, most):
    (passes,) = cut_finer(MicroBatching(size), lengths, None, most)
    assert [row for rows in passes.plan for row in rows] == list(range(len(lengths)))
    assert passes.at_once * max(map(len, passes.plan), default=0) <= size


@given(st.lists(st.integers(20, 30), min_size=16, max_size=400), st.integers(2, 4), st.booleans())
def test_work_that_fits_one_micro_batch_is_shared_evenly(lengths, most, dynamic):
    batching = MicroBatching(max_tokens=2 * sum(lengths)) if dynamic else MicroBatching(len(lengths))
    (passes,) = cut_finer(batching, lengths, None, most)
    shares = [0] * most
    for rows in passes.plan:  # whoever is free takes the next
        shares[shares.index(min(shares))] += sum(lengths[row] for row in rows)
    assert passes.at_once == most
    assert max(shares) <= sum(lengths) / most + 2 * max(lengths) + 0.2 * sum(lengths) / most * (not dynamic)


def test_little_work_is_shared_as_well():
    (passes,) = cut_finer(MicroBatching(max_tokens=16384), [70] * 20, None, 2)
    assert [len(rows) for rows in passes.plan] == [10, 10]


def test_long_rows_come_first_one_at_a_time_and_the_others_share_the_threads():
    alone, shared = cut_finer(MicroBatching(max_tokens=100), [10, 60, 20, 90, 30, 40], None, 2)
    assert (alone.at_once, alone.plan) == (1, [[3], [1]])
    assert shared.at_once == 2
    assert sorted(row for rows in shared.plan for row in rows) == [0, 2, 4, 5]


def test_one_thread_has_the_plain_plan_and_too_little_work_is_left_to_one(monkeypatch):
    batching = MicroBatching(max_tokens=100)
    (passes,) = cut_finer(batching, [30, 50, 20, 40], None, 1)
    assert (passes.at_once, passes.plan) == (1, batching.plan([30, 50, 20, 40]))
    monkeypatch.setattr(side_by_side, "WORTH_A_THREAD", 64)
    assert [passes.at_once for passes in cut_finer(batching, [30, 50, 20, 40], None, 4)] == [1]
    monkeypatch.setattr(side_by_side, "WORTH_A_THREAD", 32)
    assert [passes.at_once for passes in cut_finer(batching, [10, 20] * 8, None, 4)] == [3]


def test_a_row_beyond_the_whole_budget_is_named_as_ever():
    with pytest.raises(UserError, match=r"ppo_max_token_len_per_gpu=100 cannot hold a trajectory of 101 tokens"):
        cut_finer(MicroBatching(max_tokens=100), [101, 10, 10], None, 2)


LONG_PROMPTS = Prompts([900] * 32, [i // 8 for i in range(32)])


@pytest.mark.parametrize("batching", [MicroBatching(max_tokens=4096), MicroBatching(max_tokens=8192), MicroBatching(8)])
def test_families_are_not_torn_apart_for_the_threads(batching):
    lengths = [1000] * 32
    whole = sum(tokens(rows, lengths, LONG_PROMPTS, False) for rows in batching.plan(lengths, LONG_PROMPTS))
    most = max(tokens(rows, lengths, LONG_PROMPTS, False) for rows in batching.plan(lengths, LONG_PROMPTS))
    cut = cut_finer(batching, lengths, LONG_PROMPTS, 4)
    sizes = [[tokens(rows, lengths, LONG_PROMPTS, False) for rows in passes.plan] for passes in cut]
    assert sum(map(sum, sizes)) <= 1.1 * whole
    assert max(sum(sorted(own)[-each.at_once :]) for own, each in zip(sizes, cut)) <= 1.1 * most
