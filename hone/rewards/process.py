"""A process that calls a reward function: it can be ended when a call is stuck, and shares nothing with the run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any
from weakref import finalize

from hone.errors import UserError
from hone.rewards.address import Address
from hone.rewards.place import Place
from hone.rewards.reward import Reward

# Not multiprocessing.Process, which would import the script of the run again.
PROGRAM = "import sys; sys.path[:] = {path}; from hone.rewards.worker import serve; serve({descriptors})"


class ScoringProcess:
    """One call at a time. A call past its time ends the process, and the next call starts another."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._start()

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        with theirs, Place.file() as place:
            self.place = Place(place.fileno())
            shared = (theirs.fileno(), place.fileno())
            program = PROGRAM.format(path=sys.path, descriptors=", ".join(map(str, shared)))
            # A session of its own: an interrupt is the run's to handle, and what the function starts ends with it.
            self.process = Popen(
                [sys.executable, "-c", program], stdin=DEVNULL, pass_fds=shared, start_new_session=True
            )
        self.end = finalize(self, _end, self.process)
        self.connection.send((self.address, self.timeout_s))
        self.connection.send([None])
        self.loaded = False

    def __call__(self, answers: Sequence[Mapping[str, Any]]) -> Iterator[Reward | UserError]:
        """One reply to each answer, in order, as they come. A UserError is a mistake in the set-up.

        All answers travel at once, so that the process never waits for the next; still each has its own time. Answers
        whose replies were lost with their process, since a later one ended it, are scored again."""
        left = list(answers)
        while left:
            for reply in self._replies(left):
                del left[0]
                yield reply

    def _replies(self, answers: Sequence[Mapping[str, Any]]) -> Iterator[Reward | UserError]:
        """Up to the first answer that ends the process."""
        answers, came = list(answers), 0
        try:
            self._load()
            self.place.set(0)
            self.connection.send(answers)
            while came < len(answers) and self.connection.poll(self.timeout_s):
                for reply in self.connection.recv():
                    came += 1
                    yield reply
            if came == len(answers):
                return
            self.end()
            failed = Reward(0.0, error=f"no score within {self.timeout_s:g} s", timeout=True)
        except (EOFError, OSError):
            if not self.end.alive:  # ended with the run: no failure of the function's
                raise
            failed = Reward(0.0, error=f"the process of the reward function ended with exit code {self._exit_code()}")
        except UserError as problem:
            yield problem
            return
        yield from self(answers[came : self.place.get()])
        yield failed

    def _exit_code(self) -> int:
        with suppress(TimeoutExpired):
            self.process.wait(timeout=1)  # its end of the pipe closes a moment before it is gone
        self.end()
        return self.process.returncode

    def _load(self) -> None:
        """Importing the user's file has no time limit: it may load a model."""
        if not self.end.alive:
            self._start()
        if not self.loaded:
            self.loaded = True
            (problem,) = self.connection.recv()
            if problem is not None:
                raise problem


def _end(process: Popen) -> None:
    """Ends the process with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
