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
    known. host: bytes of CPU memory beside GPUs. stated: the user said so, or it is another machine than this."""

    kind: str
    memory: int | None
    host: int | None
    stated: bool = False

    @property
    def process(self) -> int:
        """Bytes of a process that holds no model: on a CPU those of this one, which has loaded the same libraries."""
        return CUDA_CONTEXT if self.kind == "cuda" else resident()


def machine_for(wanted: str, *, device: str | None = None, memory_gib: float | None = None) -> Machine:
    """wanted: trainer.device; device, memory_gib: what the user states of another machine"""
    chosen = device or wanted
    kind = chosen if chosen != "auto" else "cuda" if has_gpu() else "cpu"
    here = kind == "cpu" or has_gpu()
    if memory_gib is not None:
        return Machine(kind, round(memory_gib * GIB), None, stated=True)
    if kind == "cpu":
        return Machine(kind, cpu_memory(), None)
    memory = torch.cuda.get_device_properties(0).total_memory if here else None
    return Machine(kind, memory, cpu_memory() if here else None, stated=not here)


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
