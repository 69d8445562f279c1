"""Pieces of work side by side: in order, at most as many as there are cores, and nothing stays changed."""

from __future__ import annotations

import threading

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

    pieces = list(range(side_by_side()))
    results = run_side_by_side(share, pieces)
    assert [piece for piece, _ in results] == pieces
    assert len(pieces) == min(cores, MOST)
    assert sum(threads for _, threads in results) <= cores
    assert torch.get_num_threads() == cores


def test_pieces_really_run_at_the_same_time():
    meet = threading.Barrier(2, timeout=30)  # breaks unless two wait at once
    assert len(run_side_by_side(lambda _: meet.wait(), [0, 1])) == 2


@pytest.mark.parametrize("gradients", [True, False])
def test_gradients_are_on_where_the_caller_has_them(gradients):
    with torch.set_grad_enabled(gradients):
        assert run_side_by_side(lambda _: torch.is_grad_enabled(), [0, 1, 2]) == [gradients] * 3


def test_an_exception_reaches_the_caller_and_the_cores_come_back(cores):
    def fail(piece: int) -> None:
        if piece:
            raise ValueError("piece 1")

    with pytest.raises(ValueError, match="piece 1"):
        run_side_by_side(fail, [0, 1])
    assert torch.get_num_threads() == cores
