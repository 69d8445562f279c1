"""No option's result depends on how a mini-batch is cut: two steps of each, in two ways."""

from __future__ import annotations

import math

import pytest

from tests.trainers.runs import ACTOR, MODEL, REF, ROLLOUT, Stage, difference

OWN = """
def own_loss(x, p):
    d = x.logprobs - x.old_logprobs
    return -x.advantages * d + d.square(), {"distance": d.abs()}


def own_estimator(x):
    advantages = x.rewards()[:, None] * x.mask.cumsum(1) - x.token_rewards
    return advantages, advantages
"""
OPTIONS: dict[str, list[str]] = {
    "remax": ["algorithm.adv_estimator=remax"],
    "pf_ppo": ["algorithm.use_pf_ppo=True"],
    "filter_groups": ["algorithm.filter_groups.enable=True"],
    "overlong": ["reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=6"],
    "fire": [f"{ROLLOUT}.use_fire_sampling=True", "algorithm.rollout_is=True", "algorithm.rollout_is_threshold=2"],
    "clip_cov": [f"{ACTOR}.policy_loss.loss_mode=clip_cov", f"{ACTOR}.policy_loss.clip_cov_ratio=0.3",
                 f"{ACTOR}.policy_loss.clip_cov_lb=-1", f"{ACTOR}.ppo_epochs=2"],
    "kl_cov": [f"{ACTOR}.policy_loss.loss_mode=kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio=0.3",
               f"{ACTOR}.ppo_epochs=2"],
    "full KL in the loss": [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full", f"{ACTOR}.kl_loss_coef=0.5"],
    "full KL in the reward": ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=full"],
    "own estimator": ["algorithm.custom_estimator.name=own_estimator"],
    "own loss": [f"{ACTOR}.policy_loss.custom_loss.name=own_loss", f"{ACTOR}.ppo_epochs=2"],
}  # fmt: skip
CUT = [f"{ACTOR}.ppo_micro_batch_size_per_gpu=1", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=3",
       f"{REF}.log_prob_micro_batch_size_per_gpu=1", f"{MODEL}.use_remove_padding=True"]  # fmt: skip
# AdamW divides by the size of the gradient, which is noise where the gradient is: SGD shows the gradients themselves.
SGD = [f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.1"]


@pytest.mark.parametrize("option", OPTIONS)
def test_two_steps_are_finite_and_the_same_for_any_micro_batches(stage: Stage, option: str) -> None:
    path = stage.directory / "own.py"
    path.write_text(OWN)
    sections = {"own loss": f"{ACTOR}.policy_loss.custom_loss", "own estimator": "algorithm.custom_estimator"}
    own = [f"{sections[option]}.path={path}"] if option in sections else []
    more = [*SGD, *OPTIONS[option], *own]
    whole, cut = stage.run_ppo("whole", *more), stage.run_ppo("cut", *more, *CUT)
    assert difference(whole.weights(), cut.weights()) < 1e-6
    for one, other in zip(whole.results(), cut.results(), strict=True):
        assert one.keys() == other.keys() and all(math.isfinite(value) for value in one.values())
        assert one["actor/grad_norm"] > 0
        assert other["actor/grad_norm"] == pytest.approx(one["actor/grad_norm"], rel=1e-4)
        assert other["actor/pg_loss"] == pytest.approx(one["actor/pg_loss"], rel=1e-4, abs=1e-6)
