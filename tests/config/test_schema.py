"""The key tree is the reference's: every key exists, with its default."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from hone.config.presets import PRESETS
from hone.config.schema.walk import document
from hone.config.tree import get

TABLE = Path(__file__).parents[1] / "cases" / "config_keys.tsv"
PRESET_OF = {
    "ppo": "ppo_trainer",
    "ppo (strategy=megatron)": "ppo_megatron_trainer",
    "sft": "sft_trainer",
    "eval": "evaluation",
}
BEYOND_THE_TABLE = {
    "ppo_trainer": {
        "data.reward_fn_key": "data_source",
        "actor_rollout_ref.actor.clip_ratio_c": 3.0,
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
        "actor_rollout_ref.actor.policy_loss.tau_neg": 1.05,
        "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "bf16",
        "actor_rollout_ref.model.target_modules": "all-linear",
        "actor_rollout_ref.rollout.agent.default_agent_loop": "single_turn",
        "actor_rollout_ref.rollout.verify_weights": "first",
        "critic.optim.lr": 1e-5,
        "critic.model.path": "${actor_rollout_ref.model.path}",
        "critic.enable": None,
        "critic.cliprange_value": 0.5,
        "critic.ppo_max_token_len_per_gpu": 32768,
        "reward_model.overlong_buffer.enable": False,
        "algorithm.filter_groups.max_num_gen_batches": 10,
        "trainer.device": "auto",
        "trainer.balance_batch": True,
    },
    "sft_trainer": {
        "optim.betas": [0.9, 0.95],
        "data.max_length": 1024,
        "trainer.total_epochs": 1,
        "trainer.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    },
    "generation": {"rollout.name": "hf", "data.n_samples": 1, "rollout.response_length": 512},
    "evaluation": {"output_path": None},
}


def table_rows() -> list[tuple[str, str, str]]:
    with TABLE.open() as file:
        return [(row[0], row[1], row[2]) for row in list(csv.reader(file, delimiter="\t"))[1:]]


def read_default(text: str) -> Any:
    # csv has taken the quotes off texts; what is no JSON is a text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


@pytest.mark.parametrize("command", PRESET_OF)
def test_every_key_of_the_reference_exists_with_the_reference_default(command: str) -> None:
    preset = PRESETS[PRESET_OF[command]]
    docs, tree = document(preset.schema), preset.tree()
    rows = [row for row in table_rows() if row[0] == command]
    assert rows
    for _, key, text in rows:
        key = key.removesuffix(".*")
        assert key in docs, key
        if text and not text.startswith("["):
            assert _without_nulls(get(tree, key)) == _without_nulls(read_default(text)), key


def test_list_defaults_are_those_of_the_reference() -> None:
    lists = [row for row in TABLE.read_text().splitlines() if row.split("\t")[2].startswith("[")]
    assert len(lists) == 2
    for row in lists:
        command, key, text = row.split("\t")
        assert get(PRESETS[PRESET_OF[command]].tree(), key) == json.loads(text)


def _without_nulls(value: Any) -> Any:
    """The table writes `{}` for a section whose keys have no default."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", BEYOND_THE_TABLE)
def test_keys_beyond_the_table_have_their_defaults(name: str) -> None:
    tree = PRESETS[name].tree()
    assert {key: get(tree, key) for key in BEYOND_THE_TABLE[name]} == BEYOND_THE_TABLE[name]


@pytest.mark.parametrize("name", PRESETS)
def test_every_key_says_what_it_means_and_accepts(name: str) -> None:
    for doc in document(PRESETS[name].schema).values():
        assert doc.meaning.endswith((".", ")")), doc.key
        assert doc.expected, doc.key


def test_the_megatron_preset_sets_the_strategy_of_every_role() -> None:
    tree = PRESETS["ppo_megatron_trainer"].tree()
    assert get(tree, "actor_rollout_ref.actor.strategy") == "megatron"
    follows = "${actor_rollout_ref.actor.strategy}"
    for role in ("actor_rollout_ref.ref", "critic", "reward_model"):
        assert get(tree, f"{role}.strategy") == follows
