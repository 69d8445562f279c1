"""Two runs never write to one directory, and no lock outlives its process."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.tracking.run_lock import LOCK, sole_run

HOLDER = """
import sys, time
from pathlib import Path
from hone.tracking.run_lock import sole_run
with sole_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_is_told_who_holds_the_directory_until_the_first_ends(tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    with sole_run(run):
        held = rf"trainer\.default_local_dir={run}: .*process {os.getpid()} on {socket.gethostname()} since 20\d\d-"
        with pytest.raises(UserError, match=held), sole_run(run):
            pass
        with pytest.raises(UserError, match=held), sole_run(run):  # the refused one has not freed it
            pass
    with sole_run(run):
        assert (run / LOCK).exists()
    assert not run.exists()


def test_a_process_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {process.pid}"), sole_run(tmp_path):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / LOCK).exists()
    with sole_run(tmp_path):
        pass


def test_a_file_system_without_locks_is_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with sole_run(tmp_path):
        assert "a second run in this folder would not be noticed" in caplog.text


def test_a_lock_that_was_removed_while_it_was_waited_for_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def late(*arguments: object) -> None:
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        flock(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", late)
    with sole_run(tmp_path), pytest.raises(UserError, match="another run"), sole_run(tmp_path):
        pass
