"""The folder of checkpoints: complete or not there, pruned by what is on disk, found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.trainers.checkpoints import MARKER, STATE, Checkpoints, due, read_state


def fill(folder: Path, *roles: str) -> None:
    for role in roles:
        (folder / role).mkdir()
        (folder / role / "model.safetensors").write_text(f"weights of {role}")


def save(checkpoints: Checkpoints, step: int, *roles: str) -> Path:
    return checkpoints.save(step, {"kl": step / 10}, lambda folder: fill(folder, *(roles or ("actor",))))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_checkpoint_holds_its_roles_and_the_state_and_the_marker_names_it(tmp_path: Path) -> None:
    folder = save(Checkpoints(tmp_path), 3, "actor", "critic")
    assert names(tmp_path) == ["global_step_3", MARKER]
    assert (tmp_path / MARKER).read_text() == "3"
    assert (folder / "critic" / "model.safetensors").read_text() == "weights of critic"
    files = {f"{role}/model.safetensors": len(f"weights of {role}") for role in ("actor", "critic")}
    assert read_state(folder) == {"kl": 0.3, "step": 3, "files": files}


def test_a_checkpoint_that_ranks_wrote_to_another_disk_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder that all machines share"):
        Checkpoints(tmp_path).save(2, {}, lambda folder: None)
    assert not (tmp_path / MARKER).exists() and Checkpoints(tmp_path).find("auto", None) is None


class PowerCutError(Exception):
    pass


def cut(folder: Path) -> None:
    fill(folder, "actor")
    raise PowerCutError


def test_a_crash_while_writing_leaves_no_folder_with_the_final_name_and_the_marker_as_it_was(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 2)
    with pytest.raises(PowerCutError):
        checkpoints.save(4, {}, cut)
    assert not (tmp_path / "global_step_4").exists()
    assert (tmp_path / MARKER).read_text() == "2"
    assert checkpoints.find("auto", None) == tmp_path / "global_step_2"


def test_what_a_crash_left_behind_is_neither_found_nor_kept_nor_in_the_way(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(PowerCutError):
        checkpoints.save(4, {}, cut)
    (tmp_path / ".global_step_4.tmp" / "actor" / "old").write_text("half a file")
    assert checkpoints.find("auto", None) is None
    folder = save(checkpoints, 4)
    assert names(folder / "actor") == ["model.safetensors"]
    assert names(tmp_path) == ["global_step_4", MARKER]


@pytest.mark.parametrize("renamed", [MARKER.replace(".txt", ".tmp"), ".global_step_4.tmp"])
def test_a_crash_at_either_rename_leaves_a_checkpoint_to_resume_from(
    tmp_path: Path, renamed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 2)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == renamed:
            raise PowerCutError
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(PowerCutError):
        save(checkpoints, 4)
    assert checkpoints.find("auto", None) == tmp_path / "global_step_2"
    assert (tmp_path / MARKER).read_text() == "2"


def test_files_are_on_disk_before_the_folder_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    rename = Path.rename
    monkeypatch.setattr("hone.trainers.checkpoints.flush", lambda folder: events.append("flush " + folder.name))
    monkeypatch.setattr("hone.trainers.checkpoints.sync", lambda path: events.append("sync " + path.name))
    monkeypatch.setattr(Path, "rename", lambda a, b: (events.append("rename " + b.name), rename(a, b))[1])
    save(Checkpoints(tmp_path), 1)
    marker = MARKER.replace(".txt", ".tmp")
    assert events == [
        "flush .global_step_1.tmp", "rename global_step_1", f"sync {tmp_path.name}",
        f"sync {marker}", f"rename {MARKER}", f"sync {tmp_path.name}",
    ]  # fmt: skip


def test_pruning_counts_the_folders_on_disk_of_each_role(tmp_path: Path) -> None:
    for step in (1, 2, 10):  # written by an earlier process; 10 comes after 2
        save(Checkpoints(tmp_path), step, "actor", "critic")
    save(Checkpoints(tmp_path), 11, "actor", "critic")
    Checkpoints(tmp_path).prune({"actor": 2, "critic": 3}, newest=11)
    kept = {path.name: names(path) for path in tmp_path.glob("global_step_*")}
    assert kept == {
        "global_step_2": ["critic", STATE],
        "global_step_10": ["actor", "critic", STATE],
        "global_step_11": ["actor", "critic", STATE],
    }


def test_pruning_keeps_everything_without_a_limit(tmp_path: Path) -> None:
    for step in (1, 2):
        save(Checkpoints(tmp_path), step)
    Checkpoints(tmp_path).prune({"actor": None, "critic": 1}, newest=2)
    assert names(tmp_path) == ["global_step_1", "global_step_2", MARKER]


def test_pruning_never_takes_the_checkpoint_just_saved_for_one_of_a_run_that_was_given_up(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 8)
    save(checkpoints, 2)  # a new run in the same folder, begun with resume_mode=disable
    checkpoints.prune({"actor": 1}, newest=2)
    assert names(tmp_path) == ["global_step_2", MARKER]
    assert checkpoints.find("auto", None) == tmp_path / "global_step_2"


@pytest.mark.parametrize("marker", [None, "7", "", "two"])
def test_without_a_right_marker_the_newest_complete_folder_is_taken(tmp_path: Path, marker: str | None) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 10, 9):
        save(checkpoints, step)
    (tmp_path / "global_step_11" / "actor").mkdir(parents=True)  # no state: not complete
    (tmp_path / "global_step_12_old").mkdir()
    (tmp_path / MARKER).unlink()
    if marker is not None:
        (tmp_path / MARKER).write_text(marker)
    assert checkpoints.find("auto", None) == tmp_path / "global_step_10"


def test_the_marker_counts_more_than_the_highest_number(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 8)
    save(checkpoints, 4)
    assert checkpoints.find("auto", None) == tmp_path / "global_step_4"


def test_the_modes_of_finding(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.find("auto", None) is None  # the folder is not even there
    first = save(checkpoints, 1)
    save(checkpoints, 2)
    assert checkpoints.find("disable", None) is None
    assert checkpoints.find("resume_path", str(first)) == first
    with pytest.raises(UserError, match=r"trainer\.resume_from_path=.*no checkpoint there; name a global_step_<N>"):
        checkpoints.find("resume_path", str(tmp_path))


def test_saving_over_a_folder_of_the_same_step_replaces_it(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, "actor", "critic")
    folder = Checkpoints(tmp_path).save(1, {"new": True}, lambda path: fill(path, "actor"))
    assert names(folder) == ["actor", STATE]
    assert json.loads((folder / STATE).read_text()) == {
        "new": True, "step": 1, "files": {"actor/model.safetensors": len("weights of actor")},
    }  # fmt: skip


def test_checkpoints_are_due_every_so_many_steps_and_at_the_end() -> None:
    steps = [(step, step == 7) for step in range(1, 8)]
    assert [step for step, last in steps if due(step, 3, last=last)] == [3, 6, 7]
    assert not any(due(step, frequency, last=last) for step, last in steps for frequency in (0, -1))
