"""Work on a CPU in threads side by side, each with its share of the cores.

Operations of a small model are too short to fill the cores one after another: at the end of each, all threads wait for
the last. Pieces of work side by side wait for each other only once, at their end. Torch lets go of Python's lock while
it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")

MOST = 4  # with more, threads of small operations would wait for Python's lock


def side_by_side() -> int:
    """How many pieces of work the cores given to torch can run at once."""
    return min(torch.get_num_threads(), MOST)


def run_side_by_side(function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """function(piece) of each, in order, with or without gradients as the caller has it; at most `MOST` at once."""
    if len(pieces) < 2:
        return [function(piece) for piece in pieces]
    gradients, cores = torch.is_grad_enabled(), torch.get_num_threads()

    def run(piece: Piece) -> Result:
        torch.set_num_threads(_share(cores, len(pieces)))  # each thread has a number of its own
        with torch.set_grad_enabled(gradients):
            return function(piece)

    with _threads(_share(cores, len(pieces))):
        return list(_pool().map(run, pieces))


def _share(cores: int, pieces: int) -> int:
    return max(cores // min(pieces, MOST), 1)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST, thread_name_prefix="hone")
