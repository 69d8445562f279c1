"""Starting SGLang's engine: the environment that its processes get, its signals, and what is said when it fails."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.entrypoints.engine import Engine

from hone.errors import UserError
from hone.rollout.sglang.arguments import EngineArguments, check_names
from hone.rollout.starting import environment, said

# What the user has set stays, but for these.
NEEDED = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
SIGNALS = (signal.SIGTERM, signal.SIGQUIT)  # whose handlers SGLang takes


class Awaited:
    """Stands for the event loop in SGLang's Engine, whose methods wait for their answers with `run_until_complete`:
    here they hand the coroutine out, to be awaited in the loop that generates."""

    def run_until_complete(self, coroutine: Any) -> Any:
        return coroutine


def start(arguments: EngineArguments, devices: str | None = None) -> Engine:
    """Returns when the engine's processes are ready. Raises UserError when they cannot be.

    Every method of the result that is a plain function in SGLang must be awaited.
    """
    check_names(arguments.more or {})
    wanted = {
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the tokens to spare
        **({"SGLANG_USE_CPU_ENGINE": "1"} if arguments.device == "cpu" else {}),
        **({} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}),
    }
    usual = {name: value for name, value in wanted.items() if name in NEEDED or name not in os.environ}
    with environment(usual), own_signals(), _quiet_about_signals():
        try:
            llm = Engine(**arguments.for_sglang(), custom_sigquit_handler=_failed)
        except UserError:
            raise
        except Exception as error:  # SGLang says all it refuses with the exceptions of many libraries
            raise UserError(f"SGLang could not start (rollout.name=sglang): {said(error)}") from error
    atexit.unregister(llm.shutdown)  # it ends all processes of this one, the reward functions' too
    llm.loop = Awaited()
    return llm


@contextmanager
def own_signals() -> Iterator[None]:
    """Signals mean afterwards what they meant before: SGLang's handlers would end this process by force."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _failed(number: int, frame: Any) -> None:
    """A process of SGLang's that fails sends SIGQUIT, at which SGLang's own handler would end this process."""
    raise UserError(
        "SGLang could not start (rollout.name=sglang): one of its processes failed, its own messages say why, above"
    )


@contextmanager
def _quiet_about_signals() -> Iterator[None]:
    """SGLang logs as an error that it was given a handler."""

    def of_others(record: logging.LogRecord) -> bool:
        return "SIGQUIT handler" not in record.getMessage()

    logger = logging.getLogger(Engine.__module__)
    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)
