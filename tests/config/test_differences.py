"""`hone config diff`: two configurations, named as files, folders of runs, presets or commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError
from hone.config.differences import ABSENT, Named, common_command, differences, read_names
from hone.config.load import preview


def found(*arguments: str) -> list[tuple[str, object, object]]:
    first, second = read_names(arguments)
    command = common_command(first, second)
    return list(differences(first.tree(command), second.tree(command)))


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {max_prompt_length: 64}\ntrainer: {total_epochs: 2}\n")
    return str(path)


def test_keys_that_follow_others_are_told_too(mine: str) -> None:
    assert found("ppo", mine) == [
        ("data.max_prompt_length", 512, 64),
        ("actor_rollout_ref.rollout.prompt_length", 512, 64),
        ("trainer.total_epochs", 30, 2),
    ]


def test_overrides_belong_to_the_configuration_before_them(mine: str) -> None:
    assert found(mine, "data.seed=1", mine, "data.seed=2", "~trainer.total_epochs") == [
        ("data.seed", 1, 2), ("trainer.total_epochs", 2, 30),
    ]  # fmt: skip
    assert found(mine, mine) == []
    assert read_names(["ppo", "~a.b", "+c=1", "sft"]) == [Named("ppo", ("~a.b", "+c=1")), Named("sft")]


def test_a_run_is_named_by_its_folder_and_is_what_made_it(tmp_path: Path) -> None:
    argv = ["model.lora_rank=8", "optim.warmup_steps_ratio=0.2"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(preview("sft", argv).to_yaml())
    assert found(str(tmp_path / "run"), "sft", *argv) == []
    assert found(str(tmp_path / "run"), "sft", *argv, "data.seed=1") == [("data.seed", 42, 1)]


def test_entries_of_a_free_form_section_may_be_in_one_alone() -> None:
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm"
    assert found("ppo", "ppo", f"{key}.swap=3") == [(key, {}, ABSENT), (f"{key}.swap", ABSENT, 3)]


def test_presets_differ_where_they_are_meant_to() -> None:
    keys = {key for key, _, _ in found("ppo_trainer", "ppo_megatron_trainer")}
    assert "critic.strategy" in keys and len(keys) < 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], r"0 are named \(none\)"),
        (["ppo"], r"1 are named \(ppo\)"),
        (["ppo", "sft", "eval"], r"3 are named \(ppo, sft, eval\)"),
        (["a=1", "ppo", "ppo"], "stands before the configuration"),
        (["ppo", "sft"], "is a configuration of `hone sft`"),
        (["ppo_trainr", "ppo"], r"did you mean ppo_trainer\?"),
        (["/no/such.yaml", "ppo"], "neither a file nor a preset"),
        (["~nouser/such.yaml", "ppo"], "stands before"),
        (["ppo", "trainer.sed=1", "ppo"], r"did you mean trainer.seed\?"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        found(*arguments)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: [", b"3", b"- 1", b"", b"nonsense: 1"])
def test_a_file_that_is_no_configuration_is_one_message(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_bytes(content)
    if content:
        with pytest.raises(ConfigError):
            found(str(tmp_path / "odd.yaml"), "ppo")
    else:
        assert found(str(tmp_path / "odd.yaml"), "ppo") == []
