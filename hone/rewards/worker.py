"""What runs in a process of reward functions: one call after the other, in the main thread, where alarms work."""

from __future__ import annotations

import faulthandler
import threading
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from hone.errors import UserError
from hone.rewards.address import Address
from hone.rewards.place import Place
from hone.rewards.reward import Reward, score

STDERR = 2  # by number: a user's file may have put its own in the place of sys.stderr
GRACE_S = 5.0  # the run ends a call that takes too long; only when the run is gone, the call ends itself


def serve(descriptor: int, place_descriptor: int) -> None:
    """Replies until the other end is closed. The first message is (address, time limit); the others are lists, in which
    None asks whether the function loads, and anything else is an answer to score. Each gets a list of as many replies,
    in pieces."""
    connection, place = Connection(descriptor), Place(place_descriptor)
    replies: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_send, args=(connection, replies), daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the run may end at any moment
        address, timeout_s = connection.recv()
        while True:
            for number, answer in enumerate(connection.recv()):
                place.set(number)
                replies.put(_reply(address, answer, timeout_s))


def _send(connection: Connection, replies: SimpleQueue[Any]) -> None:
    """What came while the last piece was under way goes together: a call may take less time than a message."""
    with suppress(ConnectionError):
        while True:
            together = [replies.get()]
            with suppress(Empty):
                while True:
                    together.append(replies.get_nowait())
            connection.send(together)


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
