"""Python code in a sandbox: what it prints, and what it cannot do."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from hone.agents.tools.python import Python, run_python
from hone.errors import UserError


def run(code: str, seconds: float = 10, memory_mb: int = 1024) -> str:
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
    assert run("print('a', flush=True)\nwhile True: pass", seconds=1) == "a\n(stopped after 1 seconds)"
    assert run("import time; time.sleep(60)", seconds=0.5) == "(stopped after 0.5 seconds)"
    assert time.perf_counter() - begun < 10


def test_memory_and_output_have_limits() -> None:
    assert "MemoryError" in run("x = 'a' * (2 << 30)", memory_mb=512)
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
    assert victim.read_text() == "here"


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
    [({"memory": 3}, "python has no memory; config takes"), ({"time_limit": 0}, "time_limit is 0")],
)
def test_a_config_that_cannot_be_is_refused(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Python(config, {"name": "python"})
