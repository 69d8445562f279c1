"""Starting vLLM's engine: the environment that its processes get, and what is said when it does not start."""

from __future__ import annotations

import atexit
import logging
import os

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from hone.errors import UserError
from hone.rollout.starting import environment, said
from hone.rollout.vllm.arguments import EngineArguments, check_names
from hone.rollout.watchdog import Watchdog


def start(arguments: EngineArguments, devices: str | None) -> tuple[AsyncLLM, Watchdog]:
    """Returns when the engine's processes are ready. Raises UserError when they cannot be."""
    check_names(arguments.more or {})
    watchdog = Watchdog()
    wanted = {**_usual(quiet=arguments.disable_log_stats), **_needed(devices), **watchdog.environment}
    try:
        with environment(wanted):
            logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
            llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments.for_vllm()))
    except BaseException as error:
        watchdog.close()
        if not isinstance(error, Exception):
            raise
        # vLLM says all it refuses with the exceptions of many libraries.
        raise UserError(f"vLLM could not start (rollout.name=vllm): {said(error)}") from error
    # In the opposite order, and before multiprocessing, which would wait for the engine's processes for ever.
    for at_the_end in (watchdog.close, llm.shutdown):
        atexit.register(at_the_end)
    # Some of them end by force, of which vLLM would warn.
    atexit.register(logging.getLogger("vllm").setLevel, logging.ERROR)
    return llm, watchdog


def _usual(*, quiet: bool) -> dict[str, str]:
    """What the user has not set. Processes are spawned, since a fork of a process with torch's threads may hang; on a
    CPU they are bound to no cores, of which the ranks of a machine would all take the same. The statistics are messages
    of level INFO."""
    usual = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING" if quiet else "INFO",
    }
    return {name: value for name, value in usual.items() if name not in os.environ}


def _needed(devices: str | None) -> dict[str, str]:
    """On a CPU an engine computes with as many threads as the trainer; on GPUs with those of all its ranks."""
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    return threads if devices is None else {**threads, "CUDA_VISIBLE_DEVICES": devices}
