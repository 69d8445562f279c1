"""Disks that are full: how libraries report them, and which file it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEXTS = tuple(os.strerror(number) for number in FULL)  # safetensors reports an error of its own, with these words


def full(problem: BaseException) -> str | None:
    """The reason in the system's words, if this error or the one it came from says that a file could not grow."""
    error: BaseException | None = problem
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return os.strerror(error.errno)
        found = next((text for text in TEXTS if text in str(error)), None)
        if found:
            return found
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives an OSError of a write the name of the file, which the system does not say."""
    try:
        yield
    except OSError as problem:
        problem.filename = problem.filename or str(path)
        raise
