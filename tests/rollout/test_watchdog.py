"""An engine's processes end with the one that started them, whatever ends it and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hone.rollout.watchdog import MARK, Watchdog, processes_with

# A process with an engine of two: one starts the other, and both would go on for ever.
PARENT = """
import os, subprocess, sys, time
from hone.rollout.watchdog import Watchdog
watchdog = Watchdog()
print(watchdog.mark, flush=True)
sleeper = "import time; time.sleep(1000)"
starter = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeper!r}])"
subprocess.Popen([sys.executable, "-c", starter], env={**os.environ, **watchdog.environment})
exec(sys.argv[1])
"""


def marked(name: str) -> list[int]:
    return processes_with(f"{MARK}={name}")


def gone(name: str, within: float = 10) -> bool:
    until = time.monotonic() + within
    while marked(name) and time.monotonic() < until:
        time.sleep(0.05)
    return not marked(name)


@pytest.fixture
def parent() -> Iterator:
    started: list[subprocess.Popen[str]] = []

    def start(then: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", PARENT, then]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, start_new_session=True, **pipes))
        assert started[0].stdout is not None
        name = started[0].stdout.readline().strip()
        until = time.monotonic() + 10
        while len(marked(name)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(marked(name)) == 2
        return started[0], name

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_parent_ends_them(parent, how: signal.Signals) -> None:
    process, name = parent("time.sleep(1000)")
    os.killpg(process.pid, how)  # as a terminal does: the watchdog is not of the group
    process.wait(10)
    assert gone(name)


def test_they_end_with_a_parent_that_just_ends(parent) -> None:
    process, name = parent("sys.stdin.read()")
    process.stdin.close()
    assert process.wait() == 0
    assert gone(name)


def test_they_end_when_it_is_closed_though_the_parent_lives(parent) -> None:
    process, name = parent("sys.stdin.read(); watchdog.close(); watchdog.close(); time.sleep(1000)")
    process.stdin.close()
    assert gone(name)
    assert process.poll() is None


def test_another_engines_processes_are_left_alone() -> None:
    mine, other = Watchdog(), Watchdog()
    sleeper = subprocess.Popen(["sleep", "100"], env={**os.environ, **mine.environment})
    try:
        other.close()
        time.sleep(0.6)
        assert sleeper.poll() is None and marked(mine.mark) == [sleeper.pid]
        mine.close()
        assert sleeper.wait(10) == -signal.SIGKILL
    finally:
        sleeper.kill()
