import numpy as np
import pytest

from hone.data import BatchOrder, epoch_order, read_rows
from hone.data.arithmetic import write_arithmetic
from hone.errors import UserError


def order(rows=10, batch=3, **options):
    return BatchOrder(rows, batch, **{"seed": 7, "shuffle": True, **options})


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    first = epoch_order(100, seed=3, epoch=0, shuffle=True)
    assert sorted(first) == list(range(100))
    assert np.array_equal(first, epoch_order(100, seed=3, epoch=0, shuffle=True))
    assert not np.array_equal(first, epoch_order(100, seed=3, epoch=1, shuffle=True))
    assert not np.array_equal(first, epoch_order(100, seed=4, epoch=0, shuffle=True))
    assert np.array_equal(epoch_order(5, seed=3, epoch=9, shuffle=False), np.arange(5))


@pytest.mark.parametrize("start", [0, 1, 2, 3, 5, 6, 11])
def test_a_run_resumed_at_any_step_sees_the_batches_of_one_that_was_never_stopped(start):
    straight = order()
    whole = [straight.batch(step) for step in range(15)]
    resumed = order()
    assert all(np.array_equal(resumed.batch(step), whole[step]) for step in range(start, 15))


def test_asking_for_steps_in_any_order_gives_the_same_batches():
    forward, backward = order(), order()
    whole = [forward.batch(step) for step in range(9)]
    assert all(np.array_equal(backward.batch(step), whole[step]) for step in reversed(range(9)))


def test_drop_last_leaves_the_rest_of_an_epoch_out_and_repeats_no_row_within_it():
    batches = order()
    assert batches.steps_per_epoch == 3
    for epoch in range(3):
        rows = np.concatenate([batches.batch(epoch * 3 + i) for i in range(3)])
        assert len(rows) == 9
        assert len(set(rows)) == 9
        assert np.array_equal(rows, epoch_order(10, seed=7, epoch=epoch, shuffle=True)[:9])


def test_without_drop_last_every_row_is_seen_once_an_epoch():
    batches = order(drop_last=False)
    assert batches.steps_per_epoch == 4
    assert [len(batches.batch(step)) for step in range(8)] == [3, 3, 3, 1] * 2
    assert sorted(np.concatenate([batches.batch(step) for step in range(4)])) == list(range(10))
    assert order(rows=2, batch=8, drop_last=False).steps_per_epoch == 1


def test_fewer_rows_than_a_batch_is_an_error_with_both_numbers():
    with pytest.raises(UserError, match=r"data\.train_batch_size=11 .* 10 rows that data\.train_files"):
        order(rows=10, batch=11)
    assert order(rows=10, batch=10).steps_per_epoch == 1


def test_the_order_is_unrelated_to_other_permutations_of_the_same_seed():
    """A data set laid out by default_rng(seed) must not be read in that very order (numpy takes [0, 0] for 0)."""
    for seed in (0, 1, 42):
        order = epoch_order(2000, seed=seed, epoch=0, shuffle=True)
        for other in (seed, [seed], [seed, 0], [0, seed]):
            assert (order == np.random.default_rng(other).permutation(2000)).mean() < 0.01


def test_the_kinds_of_demonstration_are_spread_over_an_epoch(tmp_path):
    train, _ = write_arithmetic(tmp_path, train_size=2000, test_size=10, seed=0)
    rows = read_rows(train)
    order = epoch_order(2000, seed=0, epoch=0, shuffle=True)
    worked = np.array(["=" in rows[int(i)]["answer"] for i in order])
    shares = worked.reshape(10, 200).mean(axis=1)
    assert worked.mean() == 0.4
    assert shares.min() > 0.25 and shares.max() < 0.55
