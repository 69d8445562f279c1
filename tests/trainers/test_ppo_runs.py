"""Whole RL runs in miniature: every algorithm goes through, measures what it should, and learns from what it should."""

from __future__ import annotations

import json
import math

import pytest
import torch

from hone.data.files import read_rows
from hone.errors import UserError
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Stage, difference, same_weights

SPREAD = ("mean", "max", "min")
EVERY_RUN = {
    *(f"actor/{name}" for name in ("pg_loss", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl", "entropy", "grad_norm",
                                   "lr", "nonfinite_steps")),
    *(f"critic/{name}/{kind}" for name in ("score", "rewards", "advantages", "returns") for kind in SPREAD),
    *(f"{name}/{kind}" for name in ("response_length", "prompt_length", "num_turns", "global_seqlen")
      for kind in SPREAD),
    *(f"timing_s/{name}" for name in ("step", "gen", "reward", "old_log_prob", "adv", "update_actor",
                                          "update_weights")),
    *(f"timing_per_token_ms/{name}" for name in ("gen", "old_log_prob", "adv", "update_actor")),
    *(f"perf/{name}" for name in ("total_num_tokens", "time_per_step", "throughput", "mfu/actor")),
    *(f"training/{name}" for name in ("global_step", "epoch", "rollout_probs_diff_max", "rollout_probs_diff_mean",
                                      "rollout_probs_diff_std")),
    "response_length/clip_ratio", "reward/errors", "reward/timeouts", "rollout_corr/kl", "rollout_corr/ess",
}  # fmt: skip
CRITIC = {
    *(f"critic/{name}" for name in ("vf_loss", "vf_clipfrac", "vpred_mean", "grad_norm", "lr", "vf_explained_var")),
    *(f"critic/values/{kind}" for kind in SPREAD),
    "timing_s/values", "timing_s/update_critic", "timing_per_token_ms/values",
}  # fmt: skip
REFERENCE = {"timing_s/ref", "timing_per_token_ms/ref"}
KL_LOSS = REFERENCE | {"actor/kl_loss", "actor/kl_coef"}
KL_REWARD = REFERENCE | {"actor/reward_kl_penalty", "actor/reward_kl_penalty_coeff"}


@pytest.mark.parametrize(
    ("estimator", "more", "also"),
    [
        ("grpo", [], set()),
        ("grpo", [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.1"], KL_LOSS),
        ("gae", [], CRITIC),
        ("gae", ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive"], CRITIC | KL_REWARD),
        ("rloo", [f"{ACTOR}.ppo_epochs=2"], set()),
        ("reinforce_plus_plus", [f"{ACTOR}.entropy_coeff=0.01"], {"actor/entropy_loss"}),
        ("reinforce_plus_plus_baseline", [f"{ACTOR}.policy_loss.loss_mode=gspo"], set()),
        ("opo", [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"], set()),
        ("gpg", [f"{ACTOR}.policy_loss.loss_mode=gpg"], set()),
        ("grpo_passk", [f"{ACTOR}.shuffle=True"], set()),
        ("reward", [f"{MODEL}.use_fused_kernels=True"], set()),
        ("none", [f"{ACTOR}.policy_loss.loss_mode=cispo"], set()),
        (
            "grpo",
            ["algorithm.rollout_is=True", "algorithm.rollout_is_threshold=2", f"{ROLLOUT}.temperature=0.7"],
            set(),
        ),
    ],
)
def test_a_run_trains_and_logs_every_number(stage: Stage, estimator: str, more: list[str], also: set[str]) -> None:
    run = stage.run_ppo("run", *more, estimator=estimator)
    lines = run.lines()
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert EVERY_RUN | also <= line.keys(), sorted((EVERY_RUN | also) - line.keys())
        assert all(math.isfinite(value) for value in line.values())
        assert line["training/rollout_probs_diff_max"] < 1e-5
        assert line["actor/grad_norm"] > 0 and line["actor/nonfinite_steps"] == 0
    begun = stage.run_ppo("begun", f"{ACTOR}.optim.lr=0", "trainer.total_training_steps=1", estimator=estimator)
    assert difference(begun.weights(1), run.weights()) > 1e-4
    assert json.loads((run.directory / "global_step_2" / "trainer_state.json").read_text())["step"] == 2


@shows("trainer.critic_warmup")
def test_the_critic_warms_up_alone(stage: Stage) -> None:
    more = ("trainer.critic_warmup=1", "trainer.save_freq=1")
    run = stage.run_ppo("run", *more, estimator="gae")
    first, second = run.lines()
    assert "actor/pg_loss" not in first and "critic/vf_loss" in first and "actor/entropy" in first
    assert "actor/pg_loss" in second
    start = stage.run_ppo("start", *more, f"{ACTOR}.optim.lr=0", "trainer.total_training_steps=1", estimator="gae")
    assert same_weights(start.weights(1), run.weights(1))
    assert not same_weights(run.weights(1), run.weights(2))
    assert run.weights(1, "critic")["score.weight"].any()


def test_the_adaptive_coefficient_moves_from_step_to_step(stage: Stage) -> None:
    control = ("algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=8", "algorithm.kl_ctrl.target_kl=10")
    lines = stage.run_ppo("run", "algorithm.use_kl_in_reward=True", *control).lines()
    assert lines[0]["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-6)  # the policy is its reference still
    coefficients = [line["actor/reward_kl_penalty_coeff"] for line in lines]
    assert coefficients == pytest.approx([0.005, 0.005 * 0.8])  # far below its target, it falls by a fifth


def test_the_kl_loss_is_zero_before_the_first_update_and_not_after(stage: Stage) -> None:
    lines = stage.run_ppo("run", f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.ppo_mini_batch_size=4").lines()
    assert lines[0]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert lines[1]["actor/kl_loss"] > 1e-6
    assert lines[1]["actor/kl_coef"] == 0.001


@shows("trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.val_before_train", "trainer.test_freq")
@shows("custom_reward_function.path", "custom_reward_function.name")
def test_dumps_hold_every_trajectory_of_training_and_validation(stage: Stage) -> None:
    folders = [f"trainer.{kind}_data_dir={stage.directory}/run/{kind}" for kind in ("rollout", "validation")]
    function = "custom_reward_function.name=with_extras"
    run = stage.run_ppo("run", *folders, function, "trainer.test_freq=1", "trainer.val_before_train=True")
    assert sorted(path.name for path in (run.directory / "validation").iterdir()) == ["0.jsonl", "1.jsonl", "2.jsonl"]
    lines = run.lines("rollout/1.jsonl")
    assert len(lines) == 8 and lines[0]["input"] == lines[1]["input"] != lines[2]["input"]
    assert lines[0].keys() == {"input", "output", "gts", "score", "acc", "pred", "length", "step"}
    scores = [line["score"] for line in lines]
    assert run.lines()[1]["critic/score/mean"] == pytest.approx(sum(scores) / 8)
    assert run.lines()[1]["reward/length/mean"] == sum(line["length"] for line in lines) / 8
    before, after = run.lines("validation/0.jsonl"), run.lines("validation/2.jsonl")
    assert [line["input"] for line in before] == [line["input"] for line in after] and len(before) == 3
    name = "val-core/arithmetic/acc/mean@1"
    assert run.lines()[0][name] == pytest.approx(sum(line["acc"] for line in before) / 3)


@shows("trainer.val_only")
def test_val_only_validates_and_trains_nothing(stage: Stage) -> None:
    sampled = (f"{ROLLOUT}.val_kwargs.{change}" for change in ("n=2", "do_sample=True", "temperature=1.0"))
    run = stage.run_ppo("run", "trainer.val_only=True", *sampled)
    (line,) = run.lines()
    assert line["step"] == 0
    assert {"val-core/arithmetic/reward/mean@2", "val-core/arithmetic/reward/best@2/mean"} <= line.keys()
    assert not list(run.directory.glob("global_step_*"))


def test_validation_does_not_change_the_training(stage: Stage) -> None:
    plain = stage.run_ppo("plain")
    validated = stage.run_ppo("validated", "trainer.test_freq=1", "trainer.val_before_train=True")
    assert same_weights(plain.weights(), validated.weights())


def test_an_unscored_answer_leaves_its_group_and_the_score_metrics(stage: Stage) -> None:
    dumps = f"trainer.rollout_data_dir={stage.directory}/run/rollout"
    run = stage.run_ppo("run", "custom_reward_function.name=sometimes_none", f"{ROLLOUT}.n=4", dumps)
    scores = [line["score"] for line in run.lines("rollout/1.jsonl")]
    scored = [score for score in scores if score is not None]
    assert 0 < len(scored) < len(scores)
    assert run.lines()[0]["critic/score/mean"] == pytest.approx(sum(scored) / len(scored))
    assert run.lines()[0]["critic/score/min"] >= 0.4


def test_nothing_scored_changes_nothing_but_the_decay(stage: Stage) -> None:
    stage.reward.write_text("def compute_score(**_):\n    return None\n")
    run = stage.run_ppo("run", f"{ACTOR}.optim.weight_decay=0")
    untouched = stage.run_ppo("untouched", f"{ACTOR}.optim.lr=0")
    assert same_weights(run.weights(), untouched.weights())
    assert all(math.isfinite(value) for line in run.lines() for value in line.values())


def test_prompts_that_are_too_long_stop_the_run_or_are_dropped(stage: Stage) -> None:
    short = "data.max_prompt_length=30"
    with pytest.raises(UserError, match=r"row \d+, column 'prompt'.*30.*filter_overlong_prompts=True"):
        stage.run_ppo("run", short)
    run = stage.run_ppo("run", short, "data.filter_overlong_prompts=True")
    assert run.lines()[0]["prompt_length/max"] <= 30
    assert len(read_rows(stage.data / "train.parquet")) == 64


@shows("trainer.total_epochs", "trainer.total_training_steps", "data.train_batch_size")
def test_epochs_give_the_number_of_steps(stage: Stage) -> None:
    sizes = ("data.train_max_samples=9", "trainer.total_training_steps=null", "trainer.total_epochs=2")
    run = stage.run_ppo("run", *sizes, "trainer.save_freq=-1")
    assert [line["training/epoch"] for line in run.lines()] == [0, 0, 1, 1]  # 9 // 4 steps each
    assert not list(run.directory.glob("global_step_*"))


@shows("trainer.seed")
def test_a_run_is_a_function_of_its_command_line(stage: Stage) -> None:
    runs = [stage.run_ppo(name) for name in ("one", "two")]
    assert same_weights(runs[0].weights(), runs[1].weights())
    assert runs[0].results() == runs[1].results()
    other = stage.run_ppo("three", "trainer.seed=1")
    assert not same_weights(runs[0].weights(), other.weights())


def test_dropout_and_new_heads_are_drawn_from_the_seed(stage: Stage) -> None:
    runs = []
    for name, dropout in (("one", 0.5), ("two", 0.5), ("none", 0.0)):
        torch.manual_seed(len(runs))  # whatever the process did before
        runs.append(stage.run_ppo(name, f"+{MODEL}.override_config.attention_dropout={dropout}"))
    assert same_weights(runs[0].weights(), runs[1].weights())
    assert not same_weights(runs[0].weights(), runs[2].weights())
