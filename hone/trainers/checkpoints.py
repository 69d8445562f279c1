"""The folder of a run's checkpoints: written under a temporary name, flushed, renamed; the marker moves last."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.training.checkpoint import flush, sync

MARKER = "latest_checkpointed_iteration.txt"
STATE = "trainer_state.json"
FOLDER = re.compile(r"global_step_(\d+)")


class Checkpoints:
    """global_step_<N>/ folders below `directory`, each with one sub-folder per role and the trainer's own state."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, step: int, state: Mapping[str, Any], write_roles: Callable[[Path], None]) -> Path:
        """`write_roles(folder)` fills the folder; only a complete one ever gets its name."""
        final = self.directory / f"global_step_{step}"
        temporary = self.directory / f".global_step_{step}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_roles(temporary)
        _require_roles(temporary)
        (temporary / STATE).write_text(json.dumps({**state, "step": step}))
        flush(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        sync(self.directory)
        self._mark(step)
        return final

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
        folders = [path for _, path in sorted(self._complete(), key=lambda found: (found[0] <= newest, found[0]))]
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
        complete = self._complete()
        return max(complete)[1] if complete else None

    def _complete(self) -> list[tuple[int, Path]]:
        found = []
        for path in self.directory.glob("global_step_*"):
            match = FOLDER.fullmatch(path.name)
            if match and (path / STATE).is_file():
                found.append((int(match[1]), path))
        return found


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


def read_state(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / STATE).read_text())
