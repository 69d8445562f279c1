"""One engine's part of a checkpoint: weights, optimiser, random state, and a folder that transformers loads."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from transformers import PreTrainedTokenizerBase

from hone.errors import UserError
from hone.training.engine import TorchEngine

MODEL, OPTIMIZER, EXTRA, HF_MODEL = "model.safetensors", "optimizer.pt", "extra.pt", "huggingface"


def save_engine(
    engine: TorchEngine, folder: Path, contents: Collection[str], tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Writes the parts named in `contents` (model, optimizer, extra, hf_model) and flushes them to disk."""
    folder.mkdir(parents=True, exist_ok=True)
    if "model" in contents:
        save_model(engine.model, str(folder / MODEL))
    if "optimizer" in contents and engine.optimizer is not None:
        torch.save(engine.optimizer.state_dict(), folder / OPTIMIZER)
    if "extra" in contents:
        torch.save(_random_state() | {"nonfinite_in_a_row": engine.nonfinite_in_a_row}, folder / EXTRA)
    if "hf_model" in contents:
        engine.model.save_pretrained(folder / HF_MODEL)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / HF_MODEL)
    flush(folder)


def load_engine(engine: TorchEngine, folder: Path, contents: Collection[str]) -> None:
    """Reads the parts back. Raises UserError naming the file when one that is asked for was never saved."""
    if "model" in contents:
        load_model(engine.model, str(_present(folder / MODEL, "model")), device=str(engine.device))
    if "optimizer" in contents and engine.optimizer is not None:
        state = torch.load(_present(folder / OPTIMIZER, "optimizer"), map_location=engine.device, weights_only=True)
        engine.optimizer.load_state_dict(state)
    if "extra" in contents:
        extra = torch.load(_present(folder / EXTRA, "extra"), weights_only=True)
        engine.nonfinite_in_a_row = extra["nonfinite_in_a_row"]
        torch.set_rng_state(extra["torch"])
        if torch.cuda.is_available() and extra["cuda"]:
            torch.cuda.set_rng_state_all(extra["cuda"])


def _random_state() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _present(file: Path, part: str) -> Path:
    if not file.exists():
        raise UserError(
            f"the checkpoint has no {file}; it was saved without {part!r} in checkpoint.save_contents. "
            "Leave it out of checkpoint.load_contents, or resume from another checkpoint"
        )
    return file


def flush(folder: Path) -> None:
    """Forces every file below the folder, and the folder itself, to disk, so that a rename after it is a promise."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def sync(path: Path) -> None:
    """fsync of one file, or of a directory's entries (the renames within it)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
