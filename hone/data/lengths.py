"""How long rendered rows are, measured once before a run begins, and the error for those that are too long."""

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import Any

import numpy as np

from hone.data.chat import Conversation, Tools, rendered_lengths
from hone.errors import UserError

logger = logging.getLogger(__name__)

CHUNK = 64  # rows rendered by one call: more would be no faster, and long rows would take much memory
CHUNKS_OF_A_TASK = 16  # the tokenizer travels to a process once per task
MANY = 20_000  # rows that take some seconds


def measure(
    tokenizer: Any,
    conversations: Iterable[Conversation],
    *,
    total: int,
    add_generation_prompt: bool,
    workers: int = 1,
    tools: Tools = None,
) -> np.ndarray:
    """[rows] tokens of each rendered conversation; `total` is their number."""
    if total >= MANY:
        logger.info("measuring the lengths of %d rows", total)
    count = partial(rendered_lengths, tokenizer, add_generation_prompt=add_generation_prompt, tools=tools)
    chunks = _chunks(conversations)
    if workers == 1:
        return np.array([length for chunk in chunks for length in count(chunk)], dtype=np.int64)
    # spawn: a fork of a process that runs torch's threads may hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        measured = pool.map(count, chunks, chunksize=CHUNKS_OF_A_TASK)
        return np.array([length for lengths in measured for length in lengths], dtype=np.int64)


def _chunks(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    rest = iter(conversations)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def refuse_longer(
    lengths: np.ndarray, limit: int, *, key: str, what: str, where: Callable[[int], str], remedy: str
) -> None:
    """An error if any of `lengths` is more than `limit`, the value of `key`; `what` a row is rendered to, and `where`
    the i-th of them stands."""
    longer = np.flatnonzero(lengths > limit)
    if not len(longer):
        return
    first = int(longer[0])
    others = f"; {len(longer)} of {len(lengths)} rows are too long, the longest has {lengths.max()} tokens"
    raise UserError(
        f"{where(first)}: the rendered {what} has {lengths[first]} tokens, more than {key}={limit}"
        f"{others if len(longer) > 1 else ''}. {remedy}"
    )
