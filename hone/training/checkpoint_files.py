"""The files of a checkpoint as they are on disk: what it said that it holds, and what has become of that since."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from hone.errors import UserError

STATE = "trainer_state.json"  # written last
HF_MODEL = "huggingface"  # no resume reads it
FOLDER = re.compile(r"global_step_(\d+)")
UNREADABLE = (SafetensorError, UnpicklingError, RuntimeError, ValueError, EOFError, KeyError)
T = TypeVar("T")


def sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of every file, by its path in the checkpoint."""
    return {str(p.relative_to(checkpoint)): p.stat().st_size for p in sorted(checkpoint.rglob("*")) if p.is_file()}


def complete(directory: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every checkpoint that was written to its end."""
    found = [(FOLDER.fullmatch(path.name), path) for path in directory.glob("global_step_*")]
    return [(int(match[1]), path) for match, path in found if match and (path / STATE).is_file()]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's own state, with the sizes of the other files under `files`. Raises UserError when it is damaged."""
    file = checkpoint / STATE
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(state, dict) or not isinstance(state.get("step"), int):
            raise ValueError("it says of no step")
    except ValueError as problem:
        raise _damaged(file, checkpoint, str(problem)) from problem
    return state


def read(file: Path, part: str, load: Callable[[Path], T]) -> T:
    """What `load` makes of <checkpoint>/<role>/<file>, or of a folder of files there, whose part of save_contents is
    `part`. Raises UserError that says whether it was never saved, is gone or is damaged, and what to resume from."""
    checkpoint = file.parent.parent
    _check(file, part, checkpoint)
    try:
        return load(file)
    except torch.OutOfMemoryError:  # a RuntimeError that says nothing of the file
        raise
    except UNREADABLE as problem:
        raise _damaged(file, checkpoint, f"{type(problem).__name__}: {str(problem).strip():.200}") from problem


def _check(file: Path, part: str, checkpoint: Path) -> None:
    name = str(file.relative_to(checkpoint))
    saved = {path: size for path, size in _saved(checkpoint).items() if path == name or path.startswith(f"{name}/")}
    for path, size in saved.items():
        if wrong := _wrong(checkpoint / path, size):
            raise _damaged(checkpoint / path, checkpoint, wrong)
    if not file.exists():
        raise UserError(
            f"the checkpoint has no {file}; it was saved without {part!r} in checkpoint.save_contents. "
            "Leave it out of checkpoint.load_contents, or resume from another checkpoint"
        )


def _saved(checkpoint: Path) -> dict[str, int]:
    """Empty for a checkpoint that was written before sizes were kept."""
    return read_state(checkpoint).get("files", {}) if (checkpoint / STATE).is_file() else {}


def _wrong(file: Path, size: int) -> str | None:
    if not file.is_file():
        return f"it is gone; {size} bytes were saved"
    found = file.stat().st_size
    return None if found == size else f"it has {found} bytes, and {size} were saved"


def _damaged(file: Path, checkpoint: Path, wrong: str) -> UserError:
    earlier = _whole_before(checkpoint)
    remedy = (
        f"The one before it is whole: trainer.resume_mode=resume_path trainer.resume_from_path={earlier} goes on there"
        if earlier
        else "There is no whole one before it: trainer.resume_mode=disable begins anew"
    )
    return UserError(f"the checkpoint is damaged: {file}: {wrong}. {remedy}")


def _whole_before(checkpoint: Path) -> Path | None:
    match = FOLDER.fullmatch(checkpoint.name)
    before = [(step, path) for step, path in complete(checkpoint.parent) if match and step < int(match[1])]
    return next((path for _, path in sorted(before, reverse=True) if _is_whole(path)), None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        saved = json.loads((checkpoint / STATE).read_text(encoding="utf-8")).get("files", {})
    except (ValueError, AttributeError):
        return False
    return not any(_wrong(checkpoint / path, size) for path, size in saved.items() if HF_MODEL not in Path(path).parts)
