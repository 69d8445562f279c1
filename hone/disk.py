"""Disks that are full: libraries report them in several ways, and the system does not say which file it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Around writes to `path`: a full disk is an OSError with that name, whichever library met it."""
    try:
        yield
    except Exception as problem:
        number = _full(problem)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path)) from problem
        if isinstance(problem, OSError) and problem.filename is None:
            problem.filename = str(path)
        raise


def _full(problem: BaseException) -> int | None:
    """Which of FULL this error, or one that it came from, speaks of."""
    error: BaseException | None = problem
    while error is not None:
        for number in FULL:
            # safetensors has an error of its own, with the system's words; torch one that the system's came before.
            if (isinstance(error, OSError) and error.errno == number) or os.strerror(number) in str(error):
                return number
        error = error.__cause__ or error.__context__
    return None
