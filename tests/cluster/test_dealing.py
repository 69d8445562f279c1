"""Rows dealt to ranks come back in order, whatever their number and sizes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.batch import Batch
from hone.cluster.dealing import Dealing, join, shares


def batch_of(lengths: list[int], groups: list[int]) -> Batch:
    ids = [[row] * n for row, n in enumerate(lengths)]
    return Batch.from_sequences({"input_ids": ids}, {"group": torch.tensor(groups, dtype=torch.int64)})


rows = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=20)
dealings = st.builds(Dealing, balance=st.booleans(), keep_groups=st.booleans())


@given(rows, st.integers(1, 5), dealings)
def test_every_row_is_on_one_rank_and_results_come_back_in_order(pairs, ranks, dealing):
    lengths, groups = [n for n, _ in pairs], [g for _, g in pairs]
    batch = batch_of(lengths, groups)
    dealt = dealing.rows(batch, ranks)
    assert len(dealt) == ranks and sorted(row for share in dealt for row in share) == list(range(len(pairs)))
    results = [(Batch(p.offsets, {"out": p["input_ids"] * 2.0}), {"loss": 1.0}) for p in map(batch.select, dealt)]
    joined, metrics = join(results, dealt)
    assert torch.equal(joined["out"], batch["input_ids"] * 2.0) and torch.equal(joined.offsets, batch.offsets)
    assert metrics == {"loss": 1.0}


@given(rows, st.integers(1, 5), st.booleans())
def test_groups_stay_together(pairs, ranks, balance):
    groups = [g for _, g in pairs]
    dealt = Dealing(balance, keep_groups=True).rows(batch_of([n for n, _ in pairs], groups), ranks)
    for group in set(groups):
        assert sum(any(groups[row] == group for row in share) for share in dealt) == 1


def test_balanced_ranks_differ_by_less_than_one_row():
    lengths = [100, 1, 1, 1, 50, 49, 2, 98, 3]
    dealt = Dealing().rows(batch_of(lengths, [0] * 9), 3)
    tokens = [sum(lengths[row] for row in share) for share in dealt]
    assert max(tokens) - min(tokens) <= 3


@given(st.lists(st.integers(), max_size=20), st.integers(1, 6))
def test_shares_are_consecutive_and_nearly_equal(items, ranks):
    pieces = shares(items, ranks)
    assert [item for piece in pieces for item in piece] == items
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
