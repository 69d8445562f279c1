"""Ctrl-C: a hand that presses twice at once means it once, so that the end of a run is not cut short by accident."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ONE_PRESS_S = 1.0


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, and is not heard for a second after that. A later one counts again: it ends a
    clean-up that hangs."""
    if threading.current_thread() is not threading.main_thread():  # which alone has signals
        yield
        return
    last: float | None = None

    def interrupt(*_: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if last is None or now - last >= ONE_PRESS_S:
            last = now
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if last is None:  # else the second press may still come, while Python ends
            signal.signal(signal.SIGINT, before)
