"""Ends an engine's processes with the one that started them, however that ends: killed, and while they start, too.

A process apart waits for a pipe to close, which the system does at every end, and then ends whatever carries the
engine's mark in its environment. It is a script of the standard library alone, which is up within milliseconds.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

MARK = "HONE_ENGINE"
TRACKER = b"multiprocessing.resource_tracker"  # it ends after those it serves, and frees their shared memory then
LOOK_SECONDS, TRACKER_SECONDS = 0.2, 10.0


class Watchdog:
    """Watches from now on. Processes are the engine's if they are started with `environment`, or by one that was."""

    def __init__(self) -> None:
        self.mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        reader, self._writer = os.pipe()
        try:
            # In a session of its own, where no Ctrl-C of the terminal arrives.
            command = [sys.executable, "-I", "-S", __file__, f"{MARK}={self.mark}"]
            subprocess.run(command, stdin=reader, stdout=subprocess.DEVNULL, start_new_session=True, check=True)
        finally:
            os.close(reader)

    @property
    def environment(self) -> Mapping[str, str]:
        """setproctitle, with which engines name their processes, would write over the environment that is read here."""
        return {MARK: self.mark, "SPT_NOENV": "1"}

    def close(self) -> None:
        """Ends what is left of the engine. Returns at once."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1


def processes_with(entry: str) -> list[int]:
    """Those in whose environment it stands, as NAME=value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def _end(entry: str) -> None:
    begun = time.monotonic()
    while processes := processes_with(entry):
        patient = time.monotonic() - begun < TRACKER_SECONDS
        for process in processes:
            if not (patient and _is_tracker(process)):
                _kill(process)
        time.sleep(LOOK_SECONDS)


def _is_tracker(process: int) -> bool:
    try:
        return TRACKER in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _main(entry: str) -> None:
    """Returns at once in the process that was started: who ends its children would end this one among them."""
    if os.fork():
        return
    os.read(0, 1)
    _end(entry)


if __name__ == "__main__":
    _main(sys.argv[1])
