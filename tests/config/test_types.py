"""Traps of YAML and shells: what looks like the right type and is not, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config import ConfigError
from hone.config.load import preview
from hone.config.presets import PRESETS
from hone.config.tree import get
from hone.config.validate import resolve

ACTOR = "actor_rollout_ref.actor"


def value_of(override: str) -> object:
    key = override.partition("=")[0]
    return get(preview("ppo", [override]).config.model_dump(by_alias=True), key)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        (f"{ACTOR}.optim.lr='1e-6'", 1e-6),
        (f"{ACTOR}.optim.lr=1", 1.0),
        ("data.train_batch_size='16'", 16),
        ("data.train_batch_size=1e3", 1000),
        ("data.shuffle='False'", False),
        ("data.tokenizer=none", None),
        ("data.tokenizer=null", None),
        ("trainer.total_training_steps=None", None),
        ("algorithm.adv_estimator=none", "none"),
        ("trainer.logger=console", ["console"]),
        (f"{ACTOR}.clip_ratio_high=0.28", 0.28),
    ],
)
def test_a_value_that_means_one_thing_only_is_accepted(override: str, value: object) -> None:
    found = value_of(override)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "override",
    [
        "data.train_batch_size=True",
        f"{ACTOR}.optim.lr=True",
        "data.train_batch_size=1.5",
        "data.train_batch_size=many",
        "data.train_batch_size=null",
        "data.train_batch_size=0",
        "data.train_batch_size=[1]",
        "data.shuffle=1",
        "data.shuffle=yes",
        "data.shuffle='on'",
        "trainer.experiment_name=12",
        "trainer.experiment_name=null",
        "data.val_files=[1]",
        "algorithm.gamma=1.5",
        "algorithm.gamma=nan",
        f"{ACTOR}.clip_ratio_c=1.0",
        f"{ACTOR}.clip_ratio=0",
        f"{ACTOR}.optim.betas=[0.9]",
        f"{ACTOR}.optim.betas=[0.9,1.0]",
        f"{ACTOR}.optim.lr=-1",
        "actor_rollout_ref.rollout.top_p=0",
        "actor_rollout_ref.rollout.temperature=-1",
        "algorithm.adv_estimator=grop",
        "trainer.logger=[consol]",
        "trainer.resume_mode=True",
    ],
)
def test_a_wrong_type_choice_or_range_is_one_problem_that_names_the_key(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preview("ppo", [override])
    (problem,) = caught.value.problems
    assert problem.key == override.partition("=")[0]
    assert problem.expected and str(problem).startswith(problem.key)


def test_a_wrong_choice_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"did you mean grpo\?"):
        preview("ppo", ["algorithm.adv_estimator=grop"])


def test_a_fault_is_reported_once_although_other_keys_follow_it() -> None:
    with pytest.raises(ConfigError) as caught:
        preview("ppo", [f"{ACTOR}.use_dynamic_bsz=maybe"])
    assert [problem.key for problem in caught.value.problems] == [f"{ACTOR}.use_dynamic_bsz"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("trainer:\n  seed: ???", "trainer.seed"),
        ("trainer: {seed: '${no.such}'}", "trainer.seed"),
        ("trainer: {seed: '${data.prompt_key}'}", "trainer.seed"),
        ("critic: 3", "critic"),
        ("trainer:", "trainer"),
        ("trainer: {sed: 3}", "trainer.sed"),
        ("extra: {a: {b: 1}}", "extra"),
    ],
)
def test_a_faulty_yaml_is_one_problem_that_names_the_key(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "mine.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        preview("ppo", ["-cp", str(tmp_path), "-cn", "mine"])
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("trainer.n_gpu_per_node=1", "trainer.n_gpus_per_node"),
        ("data.train_batchsize=1", "data.train_batch_size"),
        ("actor.clip_ratio=0.1", "actor_rollout_ref.actor.clip_ratio"),
        ("rollout.n=4", "actor_rollout_ref.rollout.n"),
        ("+trainer.sed=1", "trainer.seed"),
        ("algorithm.kl_ctl.kl_coef=1", "algorithm.kl_ctrl.kl_coef"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(override: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preview("ppo", [override])
    (problem,) = caught.value.problems
    assert near in problem.fix


@pytest.mark.parametrize("name", PRESETS)
def test_every_default_fits_its_own_schema(name: str) -> None:
    preset = PRESETS[name]
    resolved, problems = resolve(preset.tree(), {})
    assert not problems
    assert preset.schema.model_validate(resolved).model_dump(by_alias=True) == resolved
