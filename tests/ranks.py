"""Functions run by several ranks of a gloo group, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["tests.training.test_engine", "hone.training.sharding"]
CONTEXT.set_forkserver_preload(PRELOADED)


def preload(module: str) -> None:
    """Imports what is slow to import once for all ranks. Called when a test file is read, before any rank is forked."""
    PRELOADED.append(module)
    CONTEXT.set_forkserver_preload(PRELOADED)


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any, timeout: float = 120) -> list[Any]:
    """function(rank, *arguments) in `size` ranks; what each returned. A rank's exception is raised with its text."""
    with TemporaryDirectory() as folder:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(size)]
        processes = [
            CONTEXT.Process(target=_rank, args=(rank, size, folder, answer, function, arguments), daemon=True)
            for rank, (_, answer) in enumerate(pipes)
        ]
        try:
            for process in processes:
                process.start()
            return [_result(rank, pipe, timeout) for rank, (pipe, _) in enumerate(pipes)]
        finally:
            for process in processes:
                process.kill()


def _result(rank: int, pipe: Any, timeout: float) -> Any:
    assert pipe.poll(timeout), f"rank {rank} did not answer within {timeout} seconds"
    error, value = pipe.recv()
    assert error is None, f"rank {rank}: {error}"
    return value


def _rank(
    rank: int, size: int, folder: str, answer: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
        result = function(rank, *arguments)
        dist.barrier()
        answer.send((None, result))
    except BaseException:
        answer.send((traceback.format_exc(), None))
