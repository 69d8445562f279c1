"""Python code of the model's, in a process of its own with limits on time, memory and output, and without a network."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from hone.agents.calling import call
from hone.agents.tools.tool import Schema, Tool
from hone.errors import UserError

PROGRAM = Path(__file__).with_name("confined.py")
MOST_OUTPUT = 1 << 20  # bytes, also of a file
READ = 1 << 16  # bytes of the output that are read
DEFAULTS = {"time_limit": 10.0, "memory_mb": 1024, "processes": os.cpu_count() or 1}

# Of a setting: its type and its least value. Below 64 MB Python itself cannot work.
LEAST: dict[str, tuple[Any, float]] = {"time_limit": (int | float, 0.1), "memory_mb": (int, 64), "processes": (int, 1)}


class Python(Tool):
    """config: time_limit in seconds, memory_mb of a process, and how many processes may run at once."""

    schema: Schema | None = {
        "name": "python",
        "description": "Runs Python code and returns what it prints, and the value of its last expression.",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "A whole program: nothing is kept between calls."}
            },
            "required": ["code"],
        },
    }
    keeps_time = True  # from when a process starts: a call may have to wait for one

    def __init__(self, config: Mapping[str, Any], schema: Schema) -> None:
        super().__init__(config, schema)
        settings = {**DEFAULTS, **config}
        if unknown := [name for name in settings if name not in DEFAULTS]:
            raise UserError(f"python has no {', '.join(unknown)}; config takes {', '.join(DEFAULTS)}")
        for name, (kinds, least) in LEAST.items():
            value = settings[name]
            if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value < math.inf:
                kind = "an integer" if kinds is int else "a number of seconds"
                raise UserError(f"python: {name} is {value!r:.80}: expected {kind} >= {least}")
        self.seconds, self.memory_mb = float(settings["time_limit"]), settings["memory_mb"]
        self.slots = asyncio.Semaphore(settings["processes"])

    async def execute(self, state: Any, arguments: dict[str, Any]) -> str:
        async with self.slots:
            run = partial(run_python, str(arguments["code"]), seconds=self.seconds, memory_mb=self.memory_mb)
            return str(await call(run))


def run_python(code: str, *, seconds: float, memory_mb: int) -> str:
    """What the code prints, with a last line that says so where a limit ended it."""
    limits = (memory_mb << 20, max(int(seconds) + 1, 1), MOST_OUTPUT)
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory(prefix="hone_python_") as folder, TemporaryFile() as output:
        process = Popen(
            [sys.executable, "-I", "-B", str(PROGRAM), *map(str, limits)],
            stdin=PIPE, stdout=output, stderr=STDOUT, cwd=folder, env={**environment, "HOME": folder},
            start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(code.encode("utf-8", "replace"), timeout=seconds)
            end = _end(process.returncode)
        except TimeoutExpired:
            end = f"(stopped after {seconds:g} seconds)"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read(READ).decode("utf-8", "replace").rstrip()
    return "\n".join(part for part in (text, end) if part) or "(no output)"


def _end(status: int) -> str:
    if status >= 0:
        return ""
    if -status == signal.SIGXCPU:
        return "(stopped: out of time)"
    return f"(ended by {signal.Signals(-status).name})"
