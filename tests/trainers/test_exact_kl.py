"""kl_loss_type=full and kl_penalty=full in whole runs."""

from __future__ import annotations

import pytest
import torch

from hone.algorithms import FixedKL
from hone.config.schema.algorithm import AlgorithmConfig
from hone.trainers.advantages import add_advantages, estimator_of
from tests.trainers.ragged import random_batch
from tests.trainers.runs import ACTOR, Stage, difference

LOSS = [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"]
REWARD = ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=full"]


def test_the_exact_kl_in_the_loss_holds_the_policy_near_the_reference(stage: Stage) -> None:
    free = stage.run_ppo("free", *LOSS, f"{ACTOR}.kl_loss_coef=0")
    held = stage.run_ppo("held", *LOSS, f"{ACTOR}.kl_loss_coef=10")
    assert 0 < held.lines()[1]["actor/kl_loss"] < free.lines()[1]["actor/kl_loss"]
    begun = stage.run_ppo("begun", f"{ACTOR}.optim.lr=0").weights()
    assert difference(begun, held.weights()) != difference(begun, free.weights())
    assert "timing_s/ref" not in held.lines()[0]  # no pass for log-probs that nobody reads


def test_the_exact_kl_in_the_reward_is_that_of_the_old_policy(stage: Stage) -> None:
    run = stage.run_ppo("run", *REWARD, "algorithm.kl_ctrl.kl_coef=1.0")
    first, second = run.lines()
    assert first["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-6)  # the policy still is the reference
    assert second["actor/reward_kl_penalty"] > 1e-5
    assert second["critic/rewards/mean"] < second["critic/score/mean"]


def test_rewards_lose_the_column_of_exact_kls() -> None:
    batch = random_batch(6, seed=0)
    exact = torch.rand(batch.num_tokens, generator=torch.Generator().manual_seed(0))
    config = AlgorithmConfig.model_validate({"adv_estimator": "none", "use_kl_in_reward": True, "kl_penalty": "full"})
    scored = batch.with_rows(score=torch.zeros(6)).with_tokens(full_kl=exact)
    found, _ = add_advantages(scored, config, estimator_of(config), FixedKL(0.3))
    torch.testing.assert_close(found["rewards"], torch.where(batch["response_mask"].bool(), -0.3 * exact, 0.0))
