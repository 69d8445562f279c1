"""What a run writes: a checkpoint's bytes by file, and how many of them lie there at once."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hone.trainers.planning.storage import Storage
from hone.training.checkpoint import ADAPTER, EXTRA, MODEL, OPTIMIZER, files_of
from hone.training.checkpoint_files import HF_MODEL

RANDOM_STATE = 6000  # bytes of a rank's random state as torch writes it
WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
BYTES_OF_A_TOKEN = 4  # of English text


@dataclass(frozen=True)
class RoleDisk:
    """files: bytes of each in one checkpoint; checkpoints: that stay, and one more while a further one is written"""

    files: dict[str, int]
    saves: int
    keep: int | None

    @property
    def checkpoint(self) -> int:
        return sum(self.files.values())

    @property
    def kept(self) -> int:
        return self.saves if self.keep is None else min(self.saves, self.keep)

    @property
    def most(self) -> int:
        return min(self.kept + 1, self.saves) * self.checkpoint


@dataclass(frozen=True)
class Disk:
    """folder: of the checkpoints; trajectories: bytes of what is dumped of them, about"""

    folder: Path
    roles: dict[str, RoleDisk]
    trajectories: int
    free: int

    @property
    def checkpoint(self) -> int:
        return sum(role.checkpoint for role in self.roles.values())

    @property
    def needed(self) -> int:
        return sum(role.most for role in self.roles.values()) + self.trajectories


def role_disk(
    contents: Collection[str], storage: Storage, *, saves: int, keep: int | None, ranks: int, tokenizer: str
) -> RoleDisk:
    """`tokenizer` is the model folder whose tokenizer goes into huggingface/."""
    sizes = {
        MODEL: storage.whole_weights,
        ADAPTER: storage.adapter,
        OPTIMIZER: storage.whole_optimizer,
        EXTRA: RANDOM_STATE * ranks,
        HF_MODEL: storage.whole_weights + _beside_weights(tokenizer),
    }
    files = files_of(contents, adapter=storage.adapter > 0, trains=True)
    return RoleDisk({name: sizes[name] for name in sizes if name in files}, saves, keep)


def disk_of(directory: str, roles: Mapping[str, RoleDisk], tokens_dumped: int) -> Disk:
    folder = Path(directory).expanduser().absolute()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return Disk(folder, dict(roles), tokens_dumped * BYTES_OF_A_TOKEN, shutil.disk_usage(there).free)


def _beside_weights(model: str) -> int:
    """Bytes of the small files of a model folder; a hub's are not counted."""
    folder = Path(model).expanduser()
    files = folder.iterdir() if folder.is_dir() else ()
    return sum(f.stat().st_size for f in files if f.is_file() and f.suffix not in WEIGHT_FILES)
