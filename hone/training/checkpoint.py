"""One engine's part of a checkpoint: weights, optimiser, random state, and a folder that transformers loads.

Weights and the optimiser's state are written whole, by name: a checkpoint does not remember how many ranks wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hone.disk import naming
from hone.errors import UserError
from hone.training.checkpoint_files import HF_MODEL, read
from hone.training.engine import TorchEngine
from hone.training.sharding import load_optimizer, load_weights, whole_optimizer, whole_weights

MODEL, OPTIMIZER, EXTRA = "model.safetensors", "optimizer.pt", "extra.pt"
ADAPTER = "lora_adapter"  # in place of MODEL when an adapter is all that is trained


def files_of(contents: Collection[str], *, adapter: bool, trains: bool) -> set[str]:
    """What lies in an engine's part of a checkpoint with these contents: MODEL or, of a model whose adapter is trained,
    ADAPTER, and of OPTIMIZER, EXTRA and HF_MODEL those that are asked for."""
    named = {"model": ADAPTER if adapter else MODEL, "optimizer": OPTIMIZER, "extra": EXTRA, "hf_model": HF_MODEL}
    return {file for part, file in named.items() if part in contents and (trains or file != OPTIMIZER)}


def save_engine(
    engine: TorchEngine, folder: Path, contents: Collection[str], tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Writes the parts named in `contents` (model, optimizer, extra, hf_model) and flushes them to disk. All ranks call
    it; the first one writes, and the random states of all are kept."""
    parts = files_of(contents, adapter=engine.adapter is not None, trains=engine.optimizer is not None)
    weights = engine.weights() if {MODEL, HF_MODEL} & parts else {}
    optimizer = engine.optimizer if OPTIMIZER in parts else None
    with engine.offload.weights(), engine.offload.optimizer_state():
        trained = whole_weights(engine.module, trained=True) if ADAPTER in parts else {}
        state = None if optimizer is None else whole_optimizer(engine.module, optimizer)
    random = engine.ranks.gather(_random_state(engine.device))
    if engine.ranks.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        with naming(folder):
            if ADAPTER in parts and engine.adapter:
                engine.adapter.save(folder / ADAPTER, trained)
            if MODEL in parts:
                save_file(_distinct(weights), folder / MODEL)
            if state is not None:
                _save(state, folder / OPTIMIZER)
            if EXTRA in parts:
                _save({"random": random, "nonfinite_in_a_row": engine.nonfinite_in_a_row}, folder / EXTRA)
            if HF_MODEL in parts:
                engine.model.save_pretrained(folder / HF_MODEL, state_dict=weights)
                if tokenizer is not None:
                    tokenizer.save_pretrained(folder / HF_MODEL)
            flush(folder)
    engine.ranks.barrier()


def load_engine(engine: TorchEngine, folder: Path, contents: Collection[str]) -> None:
    """Reads the parts back. Raises UserError naming the file when one that is asked for is not there or damaged.

    What the configuration says of the optimiser (weight decay, betas, ...) counts, not what it said when the state was
    saved."""
    if "model" in contents:
        _load_model(engine, folder)
    if "optimizer" in contents and engine.optimizer is not None:
        state = read(folder / OPTIMIZER, "optimizer", lambda file: _load(file, engine.device))
        settings = [{k: v for k, v in g.items() if k != "params"} for g in engine.optimizer.param_groups]
        with engine.offload.weights(), engine.offload.optimizer_state():
            load_optimizer(engine.module, engine.optimizer, state)
        for group, configured in zip(engine.optimizer.param_groups, settings, strict=True):
            group.update(configured)
    if "extra" in contents:
        extra = read(folder / EXTRA, "extra", _load)
        engine.nonfinite_in_a_row = extra["nonfinite_in_a_row"]
        if len(extra["random"]) == engine.ranks.size:  # other ranks draw other numbers anyhow
            _set_random_state(extra["random"][engine.ranks.rank], engine.device)


def _load_model(engine: TorchEngine, folder: Path) -> None:
    """Of a model whose adapter is trained, the adapter alone: the rest is what the run began with."""
    if engine.adapter is None:
        if (folder / ADAPTER).exists() and not (folder / MODEL).exists():
            raise UserError(f"{folder} holds a LoRA adapter and this run trains all weights; set model.lora_rank")
        weights = read(folder / MODEL, "model", lambda file: load_file(file, device=str(engine.device)))
        _load_weights(engine, weights, folder / MODEL)
        return
    if (folder / MODEL).exists() and not (folder / ADAPTER).exists():
        raise UserError(f"{folder} holds all weights and this run trains a LoRA adapter; set model.lora_rank=0")
    adapter = read(folder / ADAPTER, "model", engine.adapter.load)
    with engine.offload.weights():
        load_weights(engine.module, whole_weights(engine.module) | adapter)  # FSDP1 loads all of a layer or nothing


def _load_weights(engine: TorchEngine, saved: dict[str, Tensor], file: Path) -> None:
    """Tied weights may stand in the file under one of their names."""
    with engine.offload.weights():
        missing, unexpected = load_weights(engine.module, saved)
    others = sorted((set(missing) - set(engine.model._tied_weights_keys or ())) | set(unexpected))
    if others:
        raise UserError(f"{file} holds the weights of another model: {others[0]!r} is in only one of the two")


def _distinct(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every weight once: safetensors refuses tensors that share memory."""
    first: dict[tuple[int, Any], str] = {}
    for name, tensor in weights.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {name: weights[name].contiguous() for name in first.values()}


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """Of the CPU and of the device that the engine runs on."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _save(state: Any, file: Path) -> None:
    with file.open("wb") as stream:  # torch's own writer would not say why it failed
        torch.save(state, stream)


def _load(file: Path, device: torch.device | None = None) -> Any:
    return torch.load(file, map_location=device, weights_only=True)


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
