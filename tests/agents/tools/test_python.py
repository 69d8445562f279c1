"""Python code in a sandbox: what it prints, and what it cannot do."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from pathlib import Path

import pytest

from hone.agents.tools.python import Python, run_python
from hone.errors import UserError


def run(code: str, seconds: float = 60, memory_mb: int = 1024) -> str:
    return run_python(code, seconds=seconds, memory_mb=memory_mb)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print(6 * 7)", "42"),
        ("x = 6\nx * 7", "42"),
        ("print('a')\n'b'", "a\n'b'"),
        ("None", "(no output)"),
        ("", "(no output)"),
        ("import sys; print('out'); print('err', file=sys.stderr)", "out\nerr"),
        ("raise SystemExit", "(no output)"),
        ("open('x', 'w').write('ü'); print(open('x').read())", "ü"),
        ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nf(15)", "610"),
        ("import numpy; numpy.arange(3).sum().item()", "3"),
    ],
)
def test_what_it_prints_and_the_value_of_its_last_expression(code: str, printed: str) -> None:
    text = run(code)
    assert sorted(text.splitlines()) == sorted(printed.splitlines())


def test_an_exception_is_shown_with_the_line_of_the_code_alone() -> None:
    text = run("x = 1\nx / 0")
    assert text.endswith("ZeroDivisionError: division by zero") and 'File "<code>", line 2' in text
    assert "confined" not in text
    assert "SyntaxError" in run("1 +")


def test_code_without_an_end_is_stopped() -> None:
    begun = time.perf_counter()
    assert run("print('a', flush=True)\nwhile True: pass", seconds=4) == "a\n(stopped after 4 seconds)"
    assert run("import time; time.sleep(600)", seconds=0.5) == "(stopped after 0.5 seconds)"
    assert time.perf_counter() - begun < 60


@pytest.mark.parametrize(
    "code",
    [
        "sum(range(10**12))",  # in C, where no signal of Python's is heard
        "import re; re.match('(a+)+b', 'a' * 40)",
        "10 ** 10 ** 9",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "i = 0\nwhile True: open(str(i), 'w').write('a'); i += 1",
    ],
)
def test_whatever_keeps_it_busy_is_stopped(code: str) -> None:
    begun = time.perf_counter()
    assert run(code, seconds=1) == "(stopped after 1 seconds)"
    assert time.perf_counter() - begun < 60


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import ctypes; ctypes.string_at(0)", "(ended by SIGSEGV)"),
        ("import os; print('a', flush=True); os.abort()", "a"),
        ("import os; os._exit(3)", "(no output)"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("print('\\ud800')", "UnicodeEncodeError"),
        ("input()", "EOFError"),
        ("\0", "null bytes"),
        ("import tempfile, os; d = tempfile.mkdtemp(dir='.'); open(d + '/x', 'w'); import shutil; shutil.rmtree(d); "
         "print(os.listdir())", "[]"),
        ("import subprocess, multiprocessing, ctypes, sqlite3; sqlite3.connect(':memory:'); print('here')", "here"),
    ],
)  # fmt: skip
def test_however_it_ends_there_is_an_answer(code: str, end: str) -> None:
    assert end in run(code)


def test_memory_and_output_have_limits() -> None:
    assert "MemoryError" in run("x = 'a' * (2 << 30)", memory_mb=512)
    assert "MemoryError" in run("x = []\nwhile True: x.append(bytearray(1 << 20))", memory_mb=256)
    assert "File too large" in run("f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))")
    threads = "import threading, time\nfor i in range(10**5): threading.Thread(target=time.sleep, args=(9,)).start()"
    assert "can't start new thread" in run(threads, memory_mb=256)
    text = run("while True: print('a' * 1000)")
    assert len(text) < 1 << 17


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}')",
        "import os; os.system('true')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import os; os.kill({parent}, 9)",
        "import os; os.remove('{victim}')",
        "open('{victim}', 'w')",
        "import os; os.rename('{victim}', 'mine')",
        "import shutil; shutil.rmtree('{folder}')",
        "import os; os.symlink('{victim}', 'link'); open('link', 'w')",
        "import ctypes; ctypes.CDLL('libc.so.6')",
        "import ctypes; ctypes.CDLL(None).system(b'touch {folder}/new')",
        "import ctypes; ctypes.CDLL(None).fork()",
        "import os, signal; signal.pidfd_send_signal(os.pidfd_open({parent}), 15)",
        "import os, signal; signal.pidfd_send_signal(os.open('/proc/{parent}', os.O_RDONLY), 15)",
        "import _posixsubprocess; _posixsubprocess.fork_exec([b'/bin/true'], [b'/bin/true'], True, (), None, None, "
        "-1, -1, -1, -1, -1, -1, 1, 2, True, True, 0, None, None, None, -1, None, True)",
        "import os; os.mkfifo('{folder}/new')",
        "import os; os.utime('{victim}', (1, 1))",
        "import os; os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=os.open('{folder}', os.O_RDONLY))",
        "import os; os.remove('victim', dir_fd=os.open('{folder}', os.O_RDONLY))",
        "import os; os.chdir('{folder}'); open('new', 'w')",
        "import sqlite3; sqlite3.connect('{folder}/new')",
        "import resource; resource.prlimit(0, resource.RLIMIT_AS, (-1, -1))",
    ],
)
def test_the_network_other_processes_and_files_elsewhere_are_out_of_reach(code: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = run(code.format(port=port, victim=victim, folder=tmp_path, parent=os.getpid()))
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "PermissionError" in text or "URLError" in text or "OSError" in text, text
    assert victim.read_text() == "here" and os.listdir(tmp_path) == ["victim"]


def test_nothing_of_the_runs_environment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONE_SECRET", "key")
    assert run("import os; os.environ.get('HONE_SECRET')") == "(no output)"


def test_so_many_processes_at_once_as_the_config_says() -> None:
    tool = Python({"processes": 2, "time_limit": 20}, {"name": "python"})

    async def together() -> list[str]:
        code = "import time; a = time.time(); time.sleep(0.5); print(a, time.time())"
        return await asyncio.gather(*(tool.execute(None, {"code": code}) for _ in range(4)))

    spans = [tuple(map(float, text.split())) for text in asyncio.run(together())]
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) <= 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"memory": 3}, "python has no memory; config takes"),
        ({"time_limit": 0}, "time_limit is 0"),
        ({"time_limit": math.inf}, "time_limit is inf"),
        ({"time_limit": "fast"}, "time_limit is 'fast'"),
        ({"processes": 0.5}, "processes is 0.5: expected an integer >= 1"),
        ({"processes": True}, "processes is True"),
        ({"memory_mb": 1}, "memory_mb is 1: expected an integer >= 64"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Python(config, {"name": "python"})
