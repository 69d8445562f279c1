"""A key that has nothing to do in this build, or while its section is switched off, is said to have nothing to do."""

from __future__ import annotations

import pytest

from hone.config import load
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.resting import RESTING
from hone.config.schema.walk import document
from hone.config.support import NotBuilt
from hone.config.tree import get
from tests.config.test_support import refused_value
from tests.test_every_option_is_shown import resting

Runnable = dict[str, list[str]]
CASES = [(command, key) for command in DEFAULT_PRESET for key in resting(command)]
ROLLOUT = "actor_rollout_ref.rollout"
VALUES = {f"{ROLLOUT}.calculate_log_probs": "False", f"{ROLLOUT}.dtype": "float16"}  # others are what is done anyway


def changed(command: str, key: str) -> str:
    """An override that gives the key another value than its default."""
    preset = PRESETS[DEFAULT_PRESET[command]]
    row = NotBuilt(key, (get(preset.resolved(), key),), "")
    return f"{key}={VALUES.get(key) or refused_value(row, document(preset.schema)[key])}"


@pytest.mark.parametrize(("command", "key"), CASES, ids=[f"{command}-{key}" for command, key in CASES])
def test_a_key_that_rests_is_announced(command: str, key: str, runnable: Runnable) -> None:
    loaded = load(command, [*runnable[command], changed(command, key)])
    assert any(key in notice for notice in loaded.notices)
    assert not any(key in notice for notice in load(command, runnable[command]).notices)


def test_a_default_is_not_announced(runnable: Runnable) -> None:
    keys = ["reward_model.model.trust_remote_code=False", "reward_model.strategy=fsdp2"]
    follows = "actor_rollout_ref.actor.strategy=fsdp2"
    assert not any("reward_model" in notice for notice in load("ppo", [*runnable["ppo"], *keys, follows]).notices)
    assert any("reward_model.strategy" in notice for notice in load("ppo", [*runnable["ppo"], *keys]).notices)


def test_a_key_beside_its_switch_is_no_switch() -> None:
    rest = next(rest for rest in RESTING["ppo"] if rest.switch.endswith("multi_turn.enable"))
    section = "actor_rollout_ref.rollout.multi_turn"
    assert rest.holds(f"{section}.enable_tokenization_sanity_check") and not rest.holds(f"{section}.enable")


def test_either_the_columns_of_pairs_or_that_of_conversations_is_read(runnable: Runnable) -> None:
    def said(*more: str) -> str:
        (notice,) = [text for text in load("sft", [*runnable["sft"], *more]).notices if "multiturn" in text]
        return notice

    assert said("data.multiturn.enable=True", "data.prompt_key=q").endswith("nothing is left to do for data.prompt_key")
    both = ("data.messages_key=talk", "data.prompt_key=q")
    assert said(*both).endswith("nothing is left to do for data.messages_key")
