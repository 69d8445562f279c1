"""Pieces of work side by side: in order, at most as many as there are cores, and nothing stays changed."""

from __future__ import annotations

import _thread
import threading
import time
from collections import Counter

import pytest
import torch

from hone.models.threads import MOST, run_side_by_side, side_by_side


@pytest.fixture(params=[1, 2, 3, 8])
def cores(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order_and_the_cores_are_shared(cores):
    def share(piece: int) -> tuple[int, int]:
        return piece, torch.get_num_threads()

    pieces = list(range(3 * side_by_side()))
    results = list(run_side_by_side(share, pieces, side_by_side()))
    assert [piece for piece, _ in results] == pieces
    assert side_by_side() == min(cores, MOST)
    assert all(threads * side_by_side() <= cores for _, threads in results)
    assert torch.get_num_threads() == cores


def test_pieces_really_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=30)  # breaks unless two wait at once
    assert len(list(run_side_by_side(lambda _: meet.wait(), range(6), 2))) == 6


def test_no_more_run_than_were_asked_for_and_a_slow_one_holds_nobody_up():
    running, most, first = Counter(), [], threading.Event()

    def work(piece: int) -> int:
        running[None] += 1
        most.append(running[None])
        if piece == 2:
            first.set()
        if piece == 0:
            assert first.wait(30), "piece 2 never ran beside the first"
        running[None] -= 1
        return piece

    assert list(run_side_by_side(work, range(8), 2)) == list(range(8))
    assert max(most) <= 2


@pytest.mark.parametrize("gradients", [True, False])
def test_gradients_are_on_where_the_caller_has_them(gradients):
    with torch.set_grad_enabled(gradients):
        assert list(run_side_by_side(lambda _: torch.is_grad_enabled(), [0, 1, 2], 2)) == [gradients] * 3


def test_after_an_error_it_reaches_the_caller_nothing_runs_and_the_cores_come_back(cores):
    begun, ended = [], []

    def fail(piece: int) -> None:
        begun.append(piece)
        if piece == 1:
            raise ValueError("piece 1")
        time.sleep(0.05)
        ended.append(piece)

    with pytest.raises(ValueError, match="piece 1"):
        list(run_side_by_side(fail, range(100), side_by_side()))
    assert sorted([*ended, 1]) == sorted(begun)
    assert len(begun) < 10
    assert torch.get_num_threads() == cores


def test_who_is_interrupted_leaves_no_piece_running():
    ended = []

    def work(piece: int) -> None:
        if piece == 0:
            time.sleep(0.3)
            _thread.interrupt_main()
        time.sleep(0.5)
        ended.append(piece)

    with pytest.raises(KeyboardInterrupt):
        list(run_side_by_side(work, [0, 1], 2))
    assert sorted(ended) == [0, 1]
