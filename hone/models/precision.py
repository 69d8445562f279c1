"""Which number formats a run computes in, and what to say about it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import torch
from transformers import PretrainedConfig

from hone.errors import UserError

logger = logging.getLogger(__name__)

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


def has_gpu() -> bool:
    """Whether torch can use one in this process."""
    return torch.cuda.is_available()


def pick_device(wanted: str) -> torch.device:
    """Of this process: `auto` takes the GPU where there is one. Raises UserError where cuda is wanted and missing."""
    if wanted == "auto":
        return torch.device("cuda" if has_gpu() else "cpu")
    if wanted == "cuda" and not has_gpu():
        raise UserError(
            "trainer.device=cuda, but torch sees no GPU here (`nvidia-smi` shows whether there is one, "
            "torch.version.cuda whether torch was built for it); set trainer.device=cpu or auto"
        )
    return torch.device(wanted)


def stored_dtype(path: str) -> str:
    """The format that a model's config.json names, which is what `auto` means; fp32 where it names none.

    Read as it is written: the class of a model that comes with its own code is not known before that code is imported.
    """
    try:
        config, _ = PretrainedConfig.get_config_dict(str(Path(path).expanduser()) if path.startswith("~") else path)
    except (OSError, ValueError) as error:
        raise UserError(f"no model could be loaded from {path!r}: {str(error).strip().splitlines()[0]}") from error
    sections = (config, config.get("text_config") or {})
    named = (section.get(key) for section in sections for key in ("dtype", "torch_dtype"))
    dtype = str(next((name for name in named if name), "float32")).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UserError(
            f"the config.json of {path} names the format {dtype!r}, in which nothing is computed here: instead of "
            "auto, set the dtype to float32, bfloat16 or float16"
        )
    return dtype


def pick_compute_dtype(
    wanted: str,
    device: torch.device,
    *,
    chosen_by_user: bool,
    weights: torch.dtype = torch.float32,
    keys: tuple[str, str] = ("param_dtype", "model_dtype"),
) -> tuple[torch.dtype, str | None]:
    """The dtype of activations and matrix products, and a notice where it is not the one the defaults name.

    On a CPU weights in fp32 are computed with in fp32 unless the user asks otherwise: without bf16 instructions bf16
    products were measured 4 to 15 times slower, and with them mixed precision still made the step of a small model
    slower than fp32. `keys` are where the user chooses the dtype and the format of the weights.
    """
    dtype = DTYPES[wanted]
    if not _can_compute(device, weights, dtype):
        held = _short(weights)
        raise UserError(
            f"{keys[0]}={_short(dtype)} is wider than {keys[1]}={held}: a CPU computes with weights in the format in "
            f"which they are held. Set {keys[1]}={_short(dtype)}, or {keys[0]}={held}."
        )
    if dtype == torch.bfloat16 and device.type == "cpu" and weights == torch.float32 and not chosen_by_user:
        return (
            torch.float32,
            "computing with fp32 weights in fp32: bf16 is slower on most CPUs (set the dtype to have it all the same)",
        )
    return dtype, None


def _can_compute(device: torch.device, weights: torch.dtype, compute: torch.dtype) -> bool:
    """Everywhere but on a GPU, torch's mixed precision makes products narrower than the weights and never wider."""
    return device.type == "cuda" or compute.itemsize <= weights.itemsize


def autocast(device: torch.device, parameters: torch.dtype, compute: torch.dtype) -> AbstractContextManager[object]:
    """Mixed precision when computing in another format than the parameters are kept in."""
    if parameters == compute:
        return nullcontext()
    if not _can_compute(device, parameters, compute):
        _say_once(
            f"computing in {_short(parameters)}, the format in which the weights are held, and not in "
            f"{_short(compute)}: to compute in that, hold them in it (fsdp_config.model_dtype={_short(compute)})"
        )
        return nullcontext()
    return torch.autocast(device.type, dtype=compute)


def _short(dtype: torch.dtype) -> str:
    """The name that configurations use."""
    return next(name for name, known in DTYPES.items() if known == dtype)


@cache
def _say_once(notice: str) -> None:
    logger.warning(notice)
