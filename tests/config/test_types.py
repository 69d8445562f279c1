"""Traps of YAML and shells: what looks like the right type and is not, and the other way round."""

from __future__ import annotations

import re
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
        ("algorithm.rollout_is_mode=none", "none"),
        ("trainer.worker_nsight_options.kill=none", "none"),
        ("trainer.max_actor_ckpt_to_keep=null", None),
        ("data.train_max_samples=-1", -1),
        ("actor_rollout_ref.rollout.top_k=-1", -1),
        (f"{ACTOR}.optim.lr=1e-6", 1e-6),
        (f"{ACTOR}.optim.lr='1E-06'", 1e-6),
        (f"{ACTOR}.optim.lr='.5'", 0.5),
        (f"{ACTOR}.optim.eps=1e-8", 1e-8),
        ("data.train_files=~/a.parquet", "~/a.parquet"),
        ("trainer.default_local_dir=~/runs", "~/runs"),
        ('trainer.experiment_name="1e5"', "1e5"),
        ('trainer.experiment_name="true"', "true"),
        ("trainer.controller_nsight_options.cuda-memory-usage=true", "true"),
        ("trainer.logger=[console,tensorboard]", ["console", "tensorboard"]),
        ("trainer.logger=['console']", ["console"]),
        ("data.val_files=[a.parquet]", ["a.parquet"]),
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
        "trainer.project_name=True",
        "data.prompt_key=false",
        "trainer.default_local_dir=true",
        f"{ACTOR}.optim.lr=1e-6x",
        "data.max_prompt_length=-1",
        "data.max_prompt_length=none",
        "trainer.max_actor_ckpt_to_keep=-1",
        "trainer.logger='console,tensorboard'",
        "trainer.logger='[console,tensorboard]'",
        "trainer.logger=null",
        f"{ACTOR}.optim.betas='0.9,0.95'",
        f"{ACTOR}.checkpoint.save_contents='model,extra'",
        "actor_rollout_ref.rollout.stop_token_ids='1,2'",
    ],
)
def test_a_wrong_type_choice_or_range_is_one_problem_that_names_the_key(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preview("ppo", [override])
    (problem,) = caught.value.problems
    assert problem.key == override.partition("=")[0]
    assert problem.expected and str(problem).startswith(problem.key)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("'1e-6'", 1e-6), ("1.0e-6", 1e-6), ("1E-6", 1e-6), ("1", 1.0), (".1", 0.1), ("'2'", 2.0)],
)
def test_a_number_in_a_file_is_a_number_however_it_is_written(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "mine.yaml").write_text(f"actor_rollout_ref: {{actor: {{optim: {{lr: {text}}}}}}}\n")
    lr = preview("ppo", ["-cp", str(tmp_path), "-cn", "mine"]).config.actor_rollout_ref.actor.optim.lr
    assert lr == value and type(lr) is float


@pytest.mark.parametrize(("text", "entries"), [("'console,wandb'", "console,wandb"), ("'[0.9, x]'", "0.9, x")])
def test_a_list_in_one_text_is_told_how_it_is_written(text: str, entries: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"write it as a list, trainer.logger=[{entries}]")):
        preview("ppo", [f"trainer.logger={text}"])


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
        ("trainer: {sed: 3}", "trainer.sed"),
        ("extra: {a: {b: 1}}", "extra"),
        ("trainer: {1: 2}", "trainer.1"),
        ("yes: 2", "True"),
        ("trainer.seed: 3", "trainer.seed"),
        ("trainer: {seed: '${trainer.seed}'}", "trainer.seed"),
        ("trainer: {experiment_name: '${oc.env:NO_SUCH_VARIABLE}'}", "trainer.experiment_name"),
        ("trainer: {seed: '${data}'}", "trainer.seed"),
        ("data: {train_batch_size: {a: 1}}", "data.train_batch_size"),
        ("trainer: {experiment_name: !!binary aGVsbG8=}", "trainer.experiment_name"),
    ],
)
def test_a_faulty_yaml_is_one_problem_that_names_the_key(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "mine.yaml").write_text(text + "\n")
    with pytest.raises(ConfigError) as caught:
        preview("ppo", ["-cp", str(tmp_path), "-cn", "mine"])
    assert [problem.key for problem in caught.value.problems] == [key]


def test_keys_that_go_round_in_a_circle_are_each_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {seed: '${trainer.nnodes}', nnodes: '${trainer.seed}'}\n")
    with pytest.raises(ConfigError) as caught:
        preview("ppo", ["-cp", str(tmp_path), "-cn", "mine"])
    assert {problem.key for problem in caught.value.problems} == {"trainer.seed", "trainer.nnodes"}


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


@pytest.mark.parametrize("value", ["[0.9]", "[0.9,0.95,0.99]"])
def test_a_list_of_another_length_says_how_many_entries_it_should_have(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        preview("ppo", [f"{ACTOR}.optim.betas={value}"])
    (problem,) = caught.value.problems
    assert problem.wrong.endswith(f"has {value.count(',') + 1} entries") and problem.fix == "write 2 of them"
