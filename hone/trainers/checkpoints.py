"""The folder of a run's checkpoints: written under a temporary name, flushed, renamed; the marker moves last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hone.disk import FULL, naming
from hone.errors import UserError
from hone.training.checkpoint import flush, sync
from hone.training.checkpoint_files import STATE, complete, sizes
from hone.training.checkpoint_files import read_state as read_state  # what `save` was given, with the step

MARKER = "latest_checkpointed_iteration.txt"


class Checkpoints:
    """global_step_<N>/ folders below `directory`, each with one sub-folder per role and the trainer's own state."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, step: int, state: Mapping[str, Any], write_roles: Callable[[Path], None]) -> Path:
        """`write_roles(folder)` fills the folder; only a complete one ever gets its name. Raises UserError when the
        disk is full, and leaves the earlier checkpoints as they are."""
        final = self.directory / f"global_step_{step}"
        temporary = self.directory / f".global_step_{step}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            _write(temporary, {**state, "step": step}, write_roles)
        except OSError as problem:
            if problem.errno not in FULL:
                raise
            shutil.rmtree(temporary, ignore_errors=True)
            raise self._no_room(final, str(problem.strerror)) from problem
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        sync(self.directory)
        self._mark(step)
        return final

    def _no_room(self, folder: Path, reason: str) -> UserError:
        latest = self._latest()
        kept = (
            f"{latest} is whole, and the same command goes on from it" if latest else "no checkpoint was saved before"
        )
        return UserError(
            f"{folder} could not be saved: {reason}. What was written of it is removed; {kept}. Make room, or keep "
            "fewer (trainer.max_actor_ckpt_to_keep and its kin) or smaller ones (checkpoint.save_contents)"
        )

    def _mark(self, step: int) -> None:
        marker = self.directory / MARKER
        temporary = marker.with_suffix(".tmp")
        temporary.write_text(str(step))
        sync(temporary)
        temporary.rename(marker)
        sync(self.directory)

    def prune(self, keep: Mapping[str, int | None], *, newest: int) -> None:
        """Keeps the newest `keep[role]` folders of each role on disk (None: all), whoever wrote them.

        `newest` is the step just saved: folders of later steps were left by a run that was given up, and go first.
        """
        folders = [
            path for _, path in sorted(complete(self.directory), key=lambda found: (found[0] <= newest, found[0]))
        ]
        for role, count in keep.items():
            having = [path for path in folders if (path / role).is_dir()]
            for path in having[:-count] if count else []:
                shutil.rmtree(path / role)
        for path in folders:
            if not any(child.is_dir() for child in path.iterdir()):
                shutil.rmtree(path)

    def find(self, mode: str, path: str | None) -> Path | None:
        """The checkpoint to resume from, or None to begin anew. `mode` is trainer.resume_mode."""
        if mode == "disable":
            return None
        if mode == "resume_path":
            folder = Path(path or "").expanduser()
            if not path or not (folder / STATE).is_file():
                raise UserError(
                    f"trainer.resume_from_path={path}: no checkpoint there; name a global_step_<N> folder with {STATE}"
                )
            return folder
        return self._latest()

    def summary(self) -> str:
        """Where everything lies, in one line."""
        latest = self._latest()
        saved = f"the newest checkpoint is {latest.name}/" if latest else "no checkpoint was saved (trainer.save_freq)"
        return f"the run's files are in {self.directory}/: metrics.jsonl, config.yaml; {saved}"

    def _latest(self) -> Path | None:
        marker = self.directory / MARKER
        if marker.is_file():
            folder = self.directory / f"global_step_{marker.read_text().strip()}"
            if (folder / STATE).is_file():
                return folder
        found = complete(self.directory)
        return max(found)[1] if found else None


def _write(folder: Path, state: Mapping[str, Any], write_roles: Callable[[Path], None]) -> None:
    """The whole checkpoint, on disk when this returns; the state says which files there are."""
    folder.mkdir(parents=True)
    write_roles(folder)
    _require_roles(folder)
    with naming(folder):
        (folder / STATE).write_text(json.dumps({**state, "files": sizes(folder)}), encoding="utf-8")
        flush(folder)


def _require_roles(folder: Path) -> None:
    """Ranks write, and those on another machine may have written to a disk of its own."""
    if not any(path.is_dir() for path in folder.iterdir()):
        raise UserError(
            f"nothing of the checkpoint has come to {folder}: rank 0 runs on another machine and wrote to a disk of "
            "its own; set trainer.default_local_dir to a folder that all machines share"
        )


def due(step: int, frequency: int, *, last: bool) -> bool:
    """Every `frequency` steps and after the last one; never when the frequency is not positive."""
    return frequency > 0 and (step % frequency == 0 or last)


def finished_already(done: int, total: int) -> str:
    return (
        f"already finished: the checkpoint has {done} steps behind it, and the run is {total} long; raise "
        "trainer.total_training_steps or trainer.total_epochs to train on"
    )
