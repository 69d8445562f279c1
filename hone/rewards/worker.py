"""What runs in a process of reward functions: one call after the other, in the main thread, where alarms work."""

from __future__ import annotations

import faulthandler
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from hone.errors import UserError
from hone.rewards.address import Address
from hone.rewards.reward import Reward, score

STDERR = 2  # by number: a user's file may have put its own in the place of sys.stderr
GRACE_S = 5.0  # the run ends a call that takes too long; only when the run is gone, the call ends itself


def serve(descriptor: int) -> None:
    """Replies until the other end is closed. The first message is (address, time limit); the others are lists, in which
    None asks whether the function loads, and anything else is an answer to score."""
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):  # the run may end at any moment
        address, timeout_s = connection.recv()
        while True:
            for answer in connection.recv():
                connection.send(_reply(address, answer, timeout_s))


def _reply(address: Address, answer: dict[str, Any] | None, timeout_s: float) -> Reward | UserError | None:
    try:
        function = _load(address)
        if answer is None:
            return None
        faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=STDERR)  # needs no Python thread to run
        return score(function, answer, address.file)
    except UserError as problem:
        return problem
    finally:
        faulthandler.cancel_dump_traceback_later()


_load = cache(Address.load)
