"""Which number formats a run computes in, and what to say about it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


def pick_device(wanted: str) -> torch.device:
    """`auto` takes the GPU where there is one."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(wanted)


def cpu_is_fast_in_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU has bf16 instructions; without them bf16 was measured 4 to 15 times slower than fp32."""
    try:
        flags = cpuinfo.read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags or " bf16" in flags


def pick_compute_dtype(wanted: str, device: torch.device, *, chosen_by_user: bool) -> tuple[torch.dtype, str | None]:
    """The dtype of activations and matrix products, and a notice where it is not the one the defaults name."""
    dtype = DTYPES[wanted]
    if dtype == torch.bfloat16 and device.type == "cpu" and not chosen_by_user and not cpu_is_fast_in_bf16():
        return torch.float32, "this CPU has no bf16 instructions, where bf16 is several times slower: computing in fp32"
    return dtype, None


def autocast(device: torch.device, parameters: torch.dtype, compute: torch.dtype) -> AbstractContextManager[object]:
    """Mixed precision when computing in another format than the parameters are kept in."""
    if parameters == compute:
        return nullcontext()
    return torch.autocast(device.type, dtype=compute)
