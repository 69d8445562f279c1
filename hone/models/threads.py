"""Work on a CPU in threads side by side, each with its share of the cores.

Operations of a small model are too short to fill the cores one after another: at the end of each, all threads wait for
the last. Pieces of work side by side never wait for each other. Torch lets go of Python's lock while it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")

MOST = 4  # with more, threads of small operations would wait for Python's lock
AHEAD = 2  # pieces that may wait to begin or, finished, for an earlier one


def side_by_side() -> int:
    """How many pieces of work the cores given to torch can run at once."""
    return min(torch.get_num_threads(), MOST)


def run_side_by_side(
    function: Callable[[Piece], Result], pieces: Iterable[Piece], at_once: int, *, ahead: int = AHEAD
) -> Iterator[Result]:
    """function(piece) of each, in order, with or without gradients as the caller has it; at most `at_once` of them at a
    time. Pieces are drawn, and results handed out, while others run; after an error none runs any more."""
    if at_once < 2:
        yield from map(function, pieces)
        return
    gradients, share = torch.is_grad_enabled(), max(torch.get_num_threads() // at_once, 1)

    def run(piece: Piece) -> Result:
        torch.set_num_threads(share)  # each thread has a number of its own
        with torch.set_grad_enabled(gradients):
            return function(piece)

    running: deque[Future[Result]] = deque()
    with _threads(share):
        try:
            for piece in pieces:
                if len(running) == at_once + ahead:
                    yield _first(running)
                running.append(_pool(at_once).submit(run, piece))
            while running:
                yield _first(running)
        finally:
            for future in running:
                future.cancel()
            wait(running)


def _first(running: deque[Future[Result]]) -> Result:
    result = running[0].result()  # one whose wait is interrupted stays among them
    running.popleft()
    return result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hone")
