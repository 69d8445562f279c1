"""What a machine offers, and what a process takes before it holds a model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from hone.models.precision import has_gpu

GIB = 2**30
CUDA_CONTEXT = GIB // 2  # what a process takes on a GPU before its first tensor: kernels, cuBLAS workspaces
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Machine:
    """kind: cpu or cuda; memory: bytes of the device of a rank, or of a CPU machine for all of its ranks; None: not
    known. process: bytes of a process without a model; host: of CPU memory beside GPUs; stated: the user said so."""

    kind: str
    memory: int | None
    process: int
    host: int | None = None
    stated: bool = False


def machine_for(wanted: str, *, device: str | None = None, memory_gib: float | None = None) -> Machine:
    """wanted: trainer.device; device, memory_gib: what the user states of another machine. On a CPU this process has
    loaded the libraries that those of the run load, and no more."""
    chosen = device or wanted
    kind = chosen if chosen != "auto" else "cuda" if has_gpu() else "cpu"
    here = kind == "cpu" or has_gpu()
    process = CUDA_CONTEXT if kind == "cuda" else resident()
    if memory_gib is not None:
        return Machine(kind, round(memory_gib * GIB), process, stated=True)
    if kind == "cpu":
        return Machine(kind, cpu_memory(), process)
    memory = torch.cuda.get_device_properties(0).total_memory if here else None
    return Machine(kind, memory, process, host=cpu_memory() if here else None)


def cpu_memory() -> int | None:
    """Of the machine, or what this process may use of it."""
    limits = [int(text) for path in LIMITS if (text := _read(path)).isdigit()]
    total = next((int(line.split()[1]) * 1024 for line in _read("/proc/meminfo").splitlines()), None)
    return min([*limits, *([] if total is None else [total])], default=None)


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    pages = _read("/proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
