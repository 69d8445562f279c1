"""Which number formats a run computes in, and what to say about it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

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


def pick_compute_dtype(wanted: str, device: torch.device, *, chosen_by_user: bool) -> tuple[torch.dtype, str | None]:
    """The dtype of activations and matrix products, and a notice where it is not the one the defaults name.

    On a CPU it is fp32 unless the user asks otherwise: without bf16 instructions bf16 products were measured 4 to 15
    times slower, and with them mixed precision still made the step of a small model slower than fp32.
    """
    dtype = DTYPES[wanted]
    if dtype == torch.bfloat16 and device.type == "cpu" and not chosen_by_user:
        return (
            torch.float32,
            "computing in fp32: bf16 is slower on most CPUs (set the dtype to have it all the same)",
        )
    return dtype, None


def autocast(device: torch.device, parameters: torch.dtype, compute: torch.dtype) -> AbstractContextManager[object]:
    """Mixed precision when computing in another format than the parameters are kept in."""
    if parameters == compute:
        return nullcontext()
    return torch.autocast(device.type, dtype=compute)
