"""An option that this build cannot act on is refused, each with the key, what works and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from hone.config import ConfigError, load
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.schema.walk import KeyDoc, document
from hone.config.support import NOT_BUILT, NotBuilt, hydra_text
from hone.config.tree import get

ROWS = [(command, row) for command, rows in NOT_BUILT.items() for row in rows]
SECTIONS = {
    "trainer.controller_nsight_options": "{trace:cuda}",
    "trainer.worker_nsight_options": "{kill:sigterm}",
}


def refused_value(row: NotBuilt, doc: KeyDoc) -> str:
    """A value that fits the key's type and is not one that works."""
    if row.key in SECTIONS:
        return SECTIONS[row.key]
    if doc.choices:
        return str(next(choice for choice in doc.choices if choice not in row.works))
    if doc.expected.startswith("a list"):
        return "[other]" if "text" in doc.expected else "[7]"
    by_kind = {"true": "True", "an integer": "7", "a number": "0.5", "text": "other"}
    if True in row.works:
        by_kind["true"] = "False"
    return next(value for kind, value in by_kind.items() if doc.expected.startswith(kind))


@pytest.mark.parametrize(("command", "row"), ROWS, ids=[f"{command}-{row.key}" for command, row in ROWS])
def test_every_option_that_is_not_built_is_refused(command: str, row: NotBuilt, runnable: dict[str, list[str]]) -> None:
    docs = document(PRESETS[DEFAULT_PRESET[command]].schema)
    argv = [*runnable[command], f"{row.key}={refused_value(row, docs[row.key])}"]
    if row.when:
        argv.append(f"{row.when[0]}={row.when[1][0]}")
    with pytest.raises(ConfigError) as caught:
        load(command, argv)
    (problem,) = [p for p in caught.value.problems if p.key == row.key]
    assert "is not available in this build" in problem.wrong and problem.expected and problem.fix


@pytest.mark.parametrize(("command", "row"), ROWS, ids=[f"{command}-{row.key}" for command, row in ROWS])
def test_no_default_is_refused(command: str, row: NotBuilt) -> None:
    default = get(PRESETS[DEFAULT_PRESET[command]].tree(), row.key)
    follows_another = isinstance(default, str) and default.startswith("${")
    assert default in row.works or follows_another


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus", "opo", "gpg", "remax", "reward", "none"])
def test_what_is_built_is_let_through(estimator: str, runnable: dict[str, list[str]]) -> None:
    argv = [f"algorithm.adv_estimator={estimator}", "actor_rollout_ref.rollout.n=4"]
    load("ppo", [*runnable["ppo"], *argv, "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"])


def test_a_key_that_only_matters_with_a_switch_is_free_while_it_is_off(runnable: dict[str, list[str]]) -> None:
    model = "actor_rollout_ref.model"
    argv = [*runnable["ppo"], f"{model}.fused_kernel_options.impl_backend=triton"]
    load("ppo", argv)
    with pytest.raises(ConfigError, match="impl_backend"):
        load("ppo", [*argv, f"{model}.use_fused_kernels=True"])


def test_the_megatron_preset_is_refused_by_one_problem(runnable: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError) as caught:
        load("ppo", ["-cn", "ppo_megatron_trainer", *runnable["ppo"]])
    assert [problem.key for problem in caught.value.problems] == ["actor_rollout_ref.actor.strategy"]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (True, "True"), ([1, "a"], "[1,a]"), ({"a": None}, "{a:null}"), (0.5, "0.5")]
)
def test_values_are_shown_as_they_are_written_in_an_override(value: Any, text: str) -> None:
    assert hydra_text(value) == text
