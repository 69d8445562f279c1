"""One run at a time in a run's directory: a lock that the operating system takes back when the process ends, however it
ends."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from hone.errors import UserError

LOCK = "run.lock"

logger = logging.getLogger(__name__)


@contextmanager
def sole_run(directory: Path) -> Iterator[None]:
    """Holds the directory. Raises UserError, which says who holds it, when another run does.

    Where a file system knows no locks, or the file cannot be written, a notice says that two runs would not be noticed.
    """
    existed = directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    file = _lock(path)
    try:
        yield
    finally:
        if file is not None:
            path.unlink(missing_ok=True)  # before it is free: whoever waits for it looks whether it is still there
            file.close()
        if not existed:  # a run that was refused leaves no trace
            with suppress(OSError):
                directory.rmdir()


def _lock(path: Path) -> IO[str] | None:
    while True:
        try:
            file = path.open("a+")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(_held(path, _holder(file))) from None
        except OSError as problem:  # no locks on this file system, a file of somebody else's
            logger.warning("%s cannot be locked (%s): a second run in this folder would not be noticed", path, problem)
            return None
        if _is_still(file, path):
            break
        file.close()
    file.truncate(0)
    since = datetime.now().astimezone().isoformat(timespec="seconds")
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
    file.flush()
    return file


def _is_still(file: IO[str], path: Path) -> bool:
    """Whether the name still leads to this file: its last holder may have removed it after it was opened here."""
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another process"


def _held(path: Path, holder: str) -> str:
    return (
        f"trainer.default_local_dir={path.parent}: another run works there ({holder}, which holds {path.name}). Wait "
        "for it or end it, or set trainer.default_local_dir to another folder"
    )
