"""Paths and model names that cannot be what they are meant to be are problems like any other, never exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError, load
from hone.config.places import HUB_NAME

Runnable = dict[str, list[str]]
KEYS = {
    "data.train_files": [],
    "data.val_files": [],
    "actor_rollout_ref.model.path": [],
    "data.tokenizer": [],
    "trainer.default_local_dir": [],
    "trainer.rollout_data_dir": [],
    "ray_init.timeline_json_file": [],
    "custom_reward_function.path": [],
    "actor_rollout_ref.model.lora_adapter_path": ["actor_rollout_ref.model.lora_rank=8"],
    "trainer.resume_from_path": ["trainer.resume_mode=resume_path"],
}


def problems(argv: list[str], command: str = "ppo") -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        load(command, argv)
    return [(problem.key, problem.wrong) for problem in caught.value.problems]


@pytest.mark.parametrize("key", KEYS)
def test_the_home_of_nobody_is_named(key: str, runnable: Runnable) -> None:
    found = dict(problems([*runnable["ppo"], *KEYS[key], f"{key}=~nobody_here/x"]))
    assert "there is no user nobody_here" in found[key]


@pytest.mark.parametrize("key", KEYS)
def test_a_name_too_long_is_named_in_brief(key: str, runnable: Runnable) -> None:
    found = dict(problems([*runnable["ppo"], *KEYS[key], f"{key}={'a' * 5000}"]))
    assert "name too long" in found[key] and len(found[key]) < 500


def test_a_list_of_files_in_one_text_is_told_how_it_is_written(runnable: Runnable) -> None:
    with pytest.raises(ConfigError, match=r"data.train_files=\[a.parquet,b.parquet\]"):
        load("ppo", [*runnable["ppo"], "data.train_files='[a.parquet,b.parquet]'"])


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-0.5B-Instruct", "a_b/c.d-e", "x"])
def test_names_of_models_on_the_hub(name: str, runnable: Runnable, tmp_path: Path) -> None:
    assert HUB_NAME.fullmatch(name)
    load("ppo", [*runnable["ppo"], f"actor_rollout_ref.model.path={name}"])


@pytest.mark.parametrize("name", ["a b", "ü/b", "a//b", "a/b/c", "-a/b", "a--b/c", "a..b", "a/", "/a", "x" * 97])
def test_what_can_be_no_name_on_the_hub_is_refused(name: str, runnable: Runnable) -> None:
    assert not HUB_NAME.fullmatch(name)
    argv = [*runnable["ppo"], f'actor_rollout_ref.model.path="{name}"']
    assert [key for key, _ in problems(argv)] == ["actor_rollout_ref.model.path"]
