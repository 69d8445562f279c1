"""How rows are cut into micro-batches: all of them, once, within the budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.errors import UserError
from hone.training.micro_batches import MicroBatching, Prompts

lengths_lists = st.lists(st.integers(1, 40), max_size=30)


@given(lengths_lists, st.integers(1, 9))
def test_by_count_every_row_comes_once_in_order_and_only_the_last_piece_is_smaller(lengths, size):
    plan = MicroBatching(size).plan(lengths)
    assert [row for rows in plan for row in rows] == list(range(len(lengths)))
    assert all(len(rows) == size for rows in plan[:-1])
    assert all(1 <= len(rows) <= size for rows in plan)


@given(lengths_lists, st.integers(40, 120))
def test_by_tokens_every_row_comes_once_and_the_budget_is_never_exceeded(lengths, budget):
    plan = MicroBatching(max_tokens=budget).plan(lengths)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    sums = [sum(lengths[row] for row in rows) for rows in plan]
    assert all(0 < total <= budget for total in sums)
    # Two pieces side by side never fit into one.
    assert all(total + lengths[after[0]] > budget for total, after in zip(sums, plan[1:]))


@given(lengths_lists, st.integers(40, 120))
def test_padded_pieces_count_their_padding(lengths, budget):
    plan = MicroBatching(max_tokens=budget, padded=True).plan(lengths)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    assert all(len(rows) * max(lengths[row] for row in rows) <= budget for rows in plan)


@given(lengths_lists, st.integers(40, 120), st.integers(0, 3))
def test_with_shared_prompts_a_prompt_counts_once_in_a_piece(responses, budget, kinds):
    sizes = [7, 3, 11, 1]
    families = [i % (kinds + 1) for i in range(len(responses))]
    prompts = Prompts([sizes[f] for f in families], families)
    lengths = [min(sizes[f] + r, 40) for f, r in zip(families, responses)]
    plan = MicroBatching(max_tokens=budget).plan(lengths, prompts)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        distinct = sum(sizes[f] for f in {families[row] for row in rows})
        assert distinct + sum(lengths[row] - sizes[families[row]] for row in rows) <= budget
        assert [families[row] for row in rows] == sorted(
            (families[row] for row in rows), key=[families[r] for r in rows].index
        )


@given(lengths_lists, st.integers(40, 120))
def test_by_tokens_rows_of_a_piece_are_neighbours_in_length(lengths, budget):
    laid = [lengths[row] for rows in MicroBatching(max_tokens=budget).plan(lengths) for row in rows]
    assert laid == sorted(lengths, reverse=True)


def test_a_row_longer_than_the_budget_names_the_key_and_the_smallest_value_that_works():
    with pytest.raises(UserError, match=r"some\.key=10 cannot hold a trajectory of 17 tokens; set it to 17 or more"):
        MicroBatching(max_tokens=10, key="some.key").plan([3, 17, 12])
    assert MicroBatching(max_tokens=17).plan([3, 17, 12]) == [[1], [2, 0]]


def test_ranks_that_share_sequences_hold_as_many_times_the_budget_together():
    shared = MicroBatching(max_tokens=10, key="some.key", sequence_ranks=2)
    assert shared.plan([3, 17]) == [[1, 0]]
    with pytest.raises(UserError, match=r"some\.key=10 .* 21 tokens, shared by 2 ranks; set it to 11 or more"):
        shared.plan([21])
