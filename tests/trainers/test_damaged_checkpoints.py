"""What happened to a checkpoint after its save is said, and what to resume from; a full disk costs one checkpoint."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.trainers.checkpoints import MARKER, STATE, Checkpoints, read_state
from hone.training.checkpoint import EXTRA, MODEL, OPTIMIZER, load_engine, save_engine
from hone.training.engine import TorchEngine
from tests.training.test_checkpoint import EVERYTHING, make_engine


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return make_engine()


def save(engine: TorchEngine, directory: Path, step: int) -> Path:
    return Checkpoints(directory).save(step, {}, lambda folder: save_engine(engine, folder / "actor", EVERYTHING))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def garble(file: Path) -> None:
    """The same size, other bytes."""
    file.write_bytes(b"\xff" * file.stat().st_size)


HARMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, r"it has \d+ bytes, and \d+ were saved"),
    "deleted": (Path.unlink, r"it is gone; \d+ bytes were saved"),
    "garbled": (garble, r"Error: "),
}


@pytest.mark.parametrize("harm", list(HARMS))
@pytest.mark.parametrize("file", [MODEL, OPTIMIZER, EXTRA])
def test_a_damaged_file_is_named_with_the_checkpoint_before_it(
    engine: TorchEngine, tmp_path: Path, file: str, harm: str
) -> None:
    earlier, folder = save(engine, tmp_path, 2), save(engine, tmp_path, 4)
    do, wrong = HARMS[harm]
    do(folder / "actor" / file)
    remedy = f"trainer.resume_mode=resume_path trainer.resume_from_path={earlier} goes on there"
    with pytest.raises(UserError, match=f"damaged: {folder}/actor/{file}: .*{wrong}.*{remedy}"):
        load_engine(engine, folder / "actor", EVERYTHING)
    load_engine(engine, earlier / "actor", EVERYTHING)


@pytest.mark.parametrize("text", ["", '{"step": 4, "files', "[]", '{"kl": 1}'])
def test_a_damaged_state_of_the_trainer_is_named(engine: TorchEngine, tmp_path: Path, text: str) -> None:
    earlier, folder = save(engine, tmp_path, 2), save(engine, tmp_path, 4)
    (folder / STATE).write_text(text)
    with pytest.raises(UserError, match=f"damaged: {folder}/{STATE}: .*resume_from_path={earlier} "):
        read_state(folder)


def test_a_checkpoint_that_is_damaged_itself_is_not_recommended(engine: TorchEngine, tmp_path: Path) -> None:
    first, second, third = (save(engine, tmp_path, step) for step in (1, 2, 3))
    truncate(second / "actor" / OPTIMIZER)
    truncate(third / "actor" / MODEL)
    with pytest.raises(UserError, match=f"resume_from_path={first} "):
        load_engine(engine, third / "actor", EVERYTHING)
    (first / "actor" / EXTRA).unlink()
    with pytest.raises(UserError, match=r"no whole one before it: trainer\.resume_mode=disable begins anew"):
        load_engine(engine, third / "actor", EVERYTHING)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Bytes; a longer file fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("contents", [["model"], ["optimizer"], ["extra"], ["hf_model"]])
def test_a_full_disk_is_one_message_and_leaves_the_earlier_checkpoint(
    engine: TorchEngine, tmp_path: Path, contents: list[str]
) -> None:
    earlier = save(engine, tmp_path, 2)
    checkpoints = Checkpoints(tmp_path)
    message = f"{tmp_path}/global_step_4 could not be saved: File too large.*{earlier} is whole"
    with files_of_at_most(1000), pytest.raises(UserError, match=message):
        checkpoints.save(4, {}, lambda folder: save_engine(engine, folder / "actor", contents))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", MARKER]
    load_engine(engine, earlier / "actor", EVERYTHING)


def test_a_disk_that_is_full_for_the_trainers_state_is_the_same(engine: TorchEngine, tmp_path: Path) -> None:
    def tiny_file(folder: Path) -> None:
        (folder / "actor").mkdir()

    with files_of_at_most(1000), pytest.raises(UserError, match="no checkpoint was saved before"):
        Checkpoints(tmp_path).save(1, {"metrics": "x" * 2000}, tiny_file)
    assert not list(tmp_path.iterdir())
