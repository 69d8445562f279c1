"""A step with a single optimiser step takes its old log-probs from the update's forward pass: same numbers, one pass
less."""

from __future__ import annotations

import pytest

from hone.trainers.on_policy import OnPolicy
from tests.trainers.runs import ACTOR, MODEL, Stage, difference

WHOLE = f"{ACTOR}.ppo_mini_batch_size=4"  # all prompts of a step
DROPOUT = "+actor_rollout_ref.model.override_config.attention_dropout=0.1"
TIME = ("timing_s/", "timing_per_token_ms/", "perf/")


@pytest.mark.parametrize(
    "more",
    [
        [],
        [f"{ACTOR}.shuffle=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=3"],
        [f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.use_kl_loss=True"],
        [f"{ACTOR}.policy_loss.loss_mode=gspo", f"{MODEL}.use_fused_kernels=True"],
        [f"{ACTOR}.policy_loss.loss_mode=dppo_kl"],
    ],
)
def test_the_pass_that_is_left_out_changes_no_number(
    stage: Stage, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = stage.run_ppo("short", WHOLE, *more)
    monkeypatch.setattr(OnPolicy, "holds", lambda *_: False)
    long = stage.run_ppo("long", WHOLE, *more)
    assert difference(short.weights(), long.weights()) < 2e-6
    for ours, theirs in zip(short.lines(), long.lines(), strict=True):
        assert theirs.keys() - ours.keys() == {"timing_s/old_log_prob", "timing_per_token_ms/old_log_prob"}
        assert not ours.keys() - theirs.keys()
        for name in ours:
            if not name.startswith(TIME):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=2e-6), name
        assert 0 < ours["training/rollout_probs_diff_max"] < 1e-5 and ours["actor/entropy"] > 0


@pytest.mark.parametrize(
    "more",
    [
        [f"{ACTOR}.ppo_mini_batch_size=2"],
        [WHOLE, f"{ACTOR}.ppo_epochs=2"],
        [WHOLE, "algorithm.rollout_is=True"],
        [WHOLE, "algorithm.use_kl_in_reward=True"],
        [WHOLE, "algorithm.use_pf_ppo=True"],
        [WHOLE, f"{ACTOR}.policy_loss.loss_mode=kl_cov"],
        [WHOLE, DROPOUT, f"{MODEL}.use_remove_padding=False"],
    ],
)
def test_the_pass_runs_whenever_its_numbers_are_needed_before_the_update(stage: Stage, more: list[str]) -> None:
    for line in stage.run_ppo("run", *more).lines():
        assert "timing_s/old_log_prob" in line


def test_the_pass_runs_while_the_critic_warms_up_alone(stage: Stage) -> None:
    first, second = stage.run_ppo("run", WHOLE, "trainer.critic_warmup=1", estimator="gae").lines()
    assert "timing_s/old_log_prob" in first and "timing_s/old_log_prob" not in second
