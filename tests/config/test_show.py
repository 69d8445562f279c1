"""`hone config show`: YAML that loads back, with where each value came from in comments."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from hone.config.load import preview
from hone.config.marked_yaml import marked, with_comments
from hone.config.presets import DEFAULT_PRESET

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def shown(*argv: str, command: str = "ppo", changed_only: bool = False) -> str:
    return marked(command, preview(command, argv), changed_only=changed_only)


def comment_of(text: str, line: str) -> str:
    """The comment behind the only line that begins so."""
    (found,) = [rest for rest in text.splitlines() if rest.strip().startswith(line)]
    return found.partition("  # ")[2]


@pytest.mark.parametrize("changed_only", [False, True])
@pytest.mark.parametrize("command", DEFAULT_PRESET)
def test_what_is_shown_loads_back_to_the_same(command: str, changed_only: bool, tmp_path: Path) -> None:
    odd = {
        "ppo": [
            "trainer.project_name='a # b: c'", "trainer.experiment_name='two\nlines'", "data.max_prompt_length=64",
            f"{ACTOR}.optim.lr=1e-6", f"{ACTOR}.ppo_micro_batch_size=16", "algorithm.rollout_is=True",
            f"+{ROLLOUT}.engine_kwargs.vllm.a.b=[1,{{c:null}}]", f"{ROLLOUT}.stop=['#','\\u2028']",
        ],
        "sft": ["optim.warmup_steps_ratio=0.3", "trainer.logger=[console,wandb]"],
        "generate": ["data.path=~/x.parquet", "rollout.temperature=0"],
        "eval": ["output_path='-'"],
    }[command]  # fmt: skip
    first = preview(command, odd)
    (tmp_path / "shown.yaml").write_text(marked(command, first, changed_only=changed_only))
    assert preview(command, ["-cp", str(tmp_path), "-cn", "shown"]).config == first.config


def test_every_source_of_a_value_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [ppo_megatron_trainer, _self_]\ntrainer: {seed: 5, nnodes: 2}\n")
    text = shown("-cn", str(file), "trainer.seed=7", "data.max_prompt_length=64", "critic.optim.warmup_style=cosine")
    assert comment_of(text, "seed: 7") == "command line; default 0"
    assert comment_of(text, "nnodes: 2") == f"{file}; default 1"
    assert comment_of(text, "load_format:") == "preset ppo_megatron_trainer; default dummy_dtensor"
    assert comment_of(text, "prompt_length: 64") == "follows data.max_prompt_length; default 512"
    assert comment_of(text, "default_local_dir:") == "made of trainer.project_name and trainer.experiment_name"
    assert "critic.optim.warmup_style" in comment_of(text, "lr_scheduler_type: cosine")
    assert comment_of(text, "total_epochs:") == ""


def test_a_value_that_a_rule_sets_says_which() -> None:
    text = shown("algorithm.rollout_is=True")
    assert comment_of(text, "calculate_log_probs:").startswith("switched on: rollout_is needs")


def test_a_value_may_be_set_to_its_default() -> None:
    text = shown("trainer.total_epochs=30")
    assert comment_of(text, "total_epochs: 30") == "command line"
    assert "total_epochs" not in shown("trainer.total_epochs=30", changed_only=True)


def test_a_key_that_is_set_twice_names_the_one_that_counts(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {seed: 5, nnodes: 2}\n")
    text = shown("-cp", str(tmp_path), "-cn", "mine", "trainer.seed=6", "~trainer.nnodes")
    assert comment_of(text, "seed: 6") == "command line; default 0"
    assert comment_of(text, "nnodes: 1") == ""


def test_only_what_differs_is_shown() -> None:
    tree = yaml.safe_load(shown("data.seed=1", "data.shuffle=True", changed_only=True))
    assert tree == {"data": {"seed": 1}}
    assert yaml.safe_load(shown(changed_only=True)) == {}


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("1e5.-+_${}\\?", max_size=8)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT.filter(lambda text: text != "???"),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text("abc", min_size=1), below, max_size=3),
    max_leaves=8,
)


@given(tree=st.dictionaries(st.text("abc", min_size=1), VALUE, min_size=1, max_size=4), comment=TEXT)
def test_whatever_a_tree_and_its_comments_hold_it_loads_back(tree: dict, comment: str) -> None:
    written = with_comments(tree, dict.fromkeys(tree, comment))
    assert OmegaConf.to_container(OmegaConf.load(StringIO(written)), resolve=True) == tree


@pytest.mark.parametrize(
    "name", ["1e5", "1_0", "0x10", "on", "~", "null", "2024-01-01", "1:30", "a: b", "\\${a}", "x\n"]
)
def test_a_text_that_looks_like_something_else_stays_text_when_it_is_saved(name: str, tmp_path: Path) -> None:
    first = preview("ppo", [f'trainer.experiment_name="{name}"'])
    (tmp_path / "config.yaml").write_text(first.to_yaml())
    again = preview("ppo", ["-cp", str(tmp_path), "-cn", "config"])
    assert again.config == first.config and isinstance(again.config.trainer.experiment_name, str)
