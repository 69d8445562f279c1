"""Estimators and losses from a file of the user's take the place of the built-in ones, and are held to their shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.schema.algorithm import AlgorithmConfig
from hone.errors import UserError
from hone.trainers.advantages import add_advantages, estimator_of, kl_controller
from tests.shows import shows
from tests.trainers.ragged import random_batch
from tests.trainers.runs import ACTOR, Stage, difference, same_weights

ESTIMATORS = """
import torch

from hone.algorithms import AdvantageInputs, get_estimator


def same_as_rloo(x: AdvantageInputs):
    return get_estimator("rloo")(x)


def doubled(x):
    advantages, returns = get_estimator("rloo")(x)
    return 2 * advantages, returns


def values_too(x):
    return x.values, x.values + 1


def nan_under_the_mask(x):
    advantages = torch.where(x.mask, 1.0, torch.nan)
    return advantages, advantages


def one_number_each(x):
    return x.rewards(), x.rewards()
"""
LOSSES = """
from hone.algorithms import get_policy_loss


def same_as_vanilla(x, p):
    return get_policy_loss("vanilla")(x, p)


def doubled(x, p):
    loss, metrics = get_policy_loss("vanilla")(x, p)
    return 2 * loss, {**metrics, "selected": x.logprobs * 0 if x.selection is None else x.selection.float()}


def mean(x, p):
    loss, metrics = get_policy_loss("vanilla")(x, p)
    return loss.mean(), metrics
"""
LOSS, ESTIMATOR = f"{ACTOR}.policy_loss.custom_loss", "algorithm.custom_estimator"
SGD = [f"{ACTOR}.optim.{change}" for change in ("optimizer=SGD", "lr=0.1", "weight_decay=0")]


@pytest.fixture
def files(stage: Stage) -> dict[str, Path]:
    found = {LOSS: stage.directory / "my_losses.py", ESTIMATOR: stage.directory / "my_estimators.py"}
    found[LOSS].write_text(LOSSES)
    found[ESTIMATOR].write_text(ESTIMATORS)
    return found


def own(files: dict[str, Path], section: str, name: str) -> list[str]:
    return [f"{section}.path={files[section]}", f"{section}.name={name}"]


ONE = [*SGD, "trainer.total_training_steps=1", f"{ACTOR}.ppo_mini_batch_size=4", f"{ACTOR}.grad_clip=1e9"]


@shows(*(f"{section}.{key}" for section in (LOSS, ESTIMATOR) for key in ("path", "name")))
@pytest.mark.parametrize(("section", "same"), [(LOSS, "same_as_vanilla"), (ESTIMATOR, "same_as_rloo")])
def test_a_function_of_the_users_trains_as_the_built_in_one_it_calls_and_twice_as_far_when_doubled(
    stage: Stage, files: dict[str, Path], section: str, same: str
) -> None:
    begun = stage.run_ppo("begun", *ONE, f"{ACTOR}.optim.lr=0", estimator="rloo").weights(1)
    plain = stage.run_ppo("plain", *ONE, estimator="rloo").weights(1)
    # adv_estimator=grpo shows that the user's estimator is the one that counts.
    estimator = "grpo" if section == ESTIMATOR else "rloo"
    mine = stage.run_ppo("mine", *ONE, *own(files, section, same), estimator=estimator).weights(1)
    twice = stage.run_ppo("twice", *ONE, *own(files, section, "doubled"), estimator=estimator).weights(1)
    assert same_weights(plain, mine) and not same_weights(begun, plain)
    assert difference(begun, twice) == pytest.approx(2 * difference(begun, plain), rel=1e-3)


def test_adv_estimator_still_says_what_an_estimator_can_read(stage: Stage, files: dict[str, Path]) -> None:
    run = stage.run_ppo("run", *own(files, ESTIMATOR, "values_too"), estimator="gae")
    line = run.lines()[1]
    assert line["critic/advantages/mean"] == pytest.approx(line["critic/values/mean"], rel=1e-6) != 0


def test_loss_mode_still_says_whether_a_selection_is_made(stage: Stage, files: dict[str, Path]) -> None:
    half = [f"{ACTOR}.policy_loss.loss_mode=kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio=0.5"]
    run = stage.run_ppo("run", *own(files, LOSS, "doubled"), *half)
    assert run.lines()[0]["actor/selected"] == pytest.approx(0.5, abs=0.05)


def test_what_a_function_leaves_under_the_mask_is_set_to_0(files: dict[str, Path]) -> None:
    custom = {"path": str(files[ESTIMATOR]), "name": "nan_under_the_mask"}
    algorithm = AlgorithmConfig.model_validate({"adv_estimator": "grpo", "custom_estimator": custom})
    batch = random_batch(6, seed=0)
    found, _ = add_advantages(batch, algorithm, estimator_of(algorithm), kl_controller(algorithm.kl_ctrl))
    assert found["advantages"].tolist() == batch["response_mask"].float().tolist()


@pytest.mark.parametrize(
    ("section", "name", "message"),
    [
        (LOSS, "missing", r"custom_loss\.name=missing: .*my_losses\.py defines doubled, mean, same_as_vanilla"),
        (ESTIMATOR, "missing", r"algorithm\.custom_estimator\.name=missing: .*my_estimators\.py defines doubled"),
        (LOSS, "mean", r"custom_loss\.name=mean returned .*expected \(loss, metrics\)"),
        (ESTIMATOR, "one_number_each", r"custom_estimator\.name=one_number_each returned .*expected \(advantages"),
    ],
)
def test_a_function_that_is_missing_or_returns_something_else_is_named(
    stage: Stage, files: dict[str, Path], section: str, name: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        stage.run_ppo("run", *own(files, section, name))
