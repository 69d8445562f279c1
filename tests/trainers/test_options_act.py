"""Every option of an algorithm changes what a run trains or measures: two steps with it and two without."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shows import shows
from tests.trainers.runs import ACTOR, REF, ROLLOUT, Run, Stage, difference

LOSS, CRITIC, IS = f"{ACTOR}.policy_loss", "critic", "algorithm.rollout_is"
# Several passes with large steps, so that ratios leave their clip range.
FAR = (f"{ACTOR}.ppo_epochs=3", f"{ACTOR}.optim.lr=0.03")
GAE = ("algorithm.adv_estimator=gae",)
PENALTY = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.5")
ADAPTIVE = (*PENALTY, "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=20")
KL = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.5")
# A sampler that is not the policy, so that there is something to correct.
CORRECTED = (f"{ROLLOUT}.use_fire_sampling=True", f"{IS}=True", f"{IS}_threshold=1.5")
# AdamW, clipping and whitening forgive a change of scale: plain gradients of plain rewards do not.
SGD = tuple(
    f"{role}.{change}"
    for role in (ACTOR, CRITIC)
    for change in ("optim.optimizer=SGD", "optim.lr=0.01", "grad_clip=1e9")
)
STOPS = f"{ROLLOUT}.stop_token_ids=[{','.join(map(str, range(40, 140)))}]"  # for answers of many lengths
PLAIN = (*SGD, STOPS, "algorithm.adv_estimator=reward")
OVERLONG = (*PLAIN, "reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=6")
PF_PPO = ("algorithm.use_pf_ppo=True",)
COV = (*FAR, f"{LOSS}.loss_mode=clip_cov", f"{LOSS}.clip_cov_ratio=0.3", f"{LOSS}.clip_cov_lb=-1")
KL_COV = (*FAR, f"{LOSS}.loss_mode=kl_cov", f"{LOSS}.kl_cov_ratio=0.3")
THREE_STEPS = ("trainer.total_training_steps=3", "trainer.save_freq=3")
NORM = (*SGD, f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm")

CASES: list[tuple[str, str, tuple[str, ...]]] = [
    ("algorithm.adv_estimator", "rloo", ()),
    ("algorithm.gamma", "0.5", ("algorithm.adv_estimator=reinforce_plus_plus",)),
    ("algorithm.lam", "0.2", GAE),
    ("algorithm.norm_adv_by_std_in_grpo", "False", ()),
    ("algorithm.use_kl_in_reward", "True", ("algorithm.kl_ctrl.kl_coef=0.5",)),
    ("algorithm.kl_penalty", "k2", PENALTY),
    ("algorithm.kl_ctrl.kl_coef", "0.1", PENALTY),
    ("algorithm.kl_ctrl.type", "adaptive", (*PENALTY, *FAR, "algorithm.kl_ctrl.horizon=20")),
    ("algorithm.kl_ctrl.horizon", "40", (*ADAPTIVE, *FAR)),
    ("algorithm.kl_ctrl.target_kl", "1000", (*ADAPTIVE, *FAR, *THREE_STEPS)),
    ("algorithm.use_pf_ppo", "True", ()),
    ("algorithm.pf_ppo.reweight_method", "max_min", PF_PPO),
    ("algorithm.pf_ppo.weight_pow", "30", PF_PPO),
    ("algorithm.rollout_is", "True", (f"{ROLLOUT}.use_fire_sampling=True", f"{IS}_threshold=1.5")),
    ("algorithm.rollout_is_threshold", "1.1", CORRECTED),
    ("algorithm.rollout_is_threshold_lower", "0.9", (*CORRECTED, f"{IS}_mode=mask")),
    ("algorithm.rollout_is_level", "sequence", CORRECTED),
    ("algorithm.rollout_is_mode", "mask", CORRECTED),
    ("algorithm.rollout_is_weights", "False", (*CORRECTED, f"{IS}_mode=mask")),
    ("algorithm.rollout_is_veto_threshold", "0.5", CORRECTED),
    ("algorithm.rollout_correction.rollout_is", "token", (f"{ROLLOUT}.use_fire_sampling=True",)),
    (
        "algorithm.rollout_correction.rollout_is_threshold",
        "1.1",
        (f"{ROLLOUT}.use_fire_sampling=True", "algorithm.rollout_correction.rollout_is=token"),
    ),
    ("algorithm.rollout_correction.rollout_rs", "token", (f"{ROLLOUT}.use_fire_sampling=True",)),
    (
        "algorithm.rollout_correction.rollout_rs_threshold",
        "1.05",
        (f"{ROLLOUT}.use_fire_sampling=True", "algorithm.rollout_correction.rollout_rs=token"),
    ),
    (
        "algorithm.rollout_correction.rollout_rs_threshold_lower",
        "0.97",
        (f"{ROLLOUT}.use_fire_sampling=True", "algorithm.rollout_correction.rollout_rs=token"),
    ),
    ("algorithm.rollout_correction.rollout_token_veto_threshold", "0.5", (f"{ROLLOUT}.use_fire_sampling=True",)),
    (f"{LOSS}.loss_mode", "cispo", FAR),
    (f"{LOSS}.tau_pos", "3", (*FAR, f"{LOSS}.loss_mode=sapo")),
    (f"{LOSS}.tau_neg", "3", (*FAR, f"{LOSS}.loss_mode=sapo")),
    (f"{LOSS}.clip_cov_ratio", "0.9", COV),
    (f"{LOSS}.clip_cov_lb", "0.0", COV),
    (f"{LOSS}.clip_cov_ub", "0.0", COV),
    (f"{LOSS}.kl_cov_ratio", "0.9", KL_COV),
    (f"{LOSS}.ppo_kl_coef", "5", KL_COV),
    (f"{ACTOR}.clip_ratio", "0.01", FAR),
    (f"{ACTOR}.clip_ratio_low", "0.01", FAR),
    (f"{ACTOR}.clip_ratio_high", "0.01", FAR),
    (f"{ACTOR}.clip_ratio_c", "1.01", FAR),
    (f"{ACTOR}.loss_agg_mode", "seq-mean-token-sum", SGD),
    (f"{ACTOR}.loss_scale_factor", "3", NORM),
    (f"{ACTOR}.entropy_coeff", "0.5", ()),
    (f"{ACTOR}.use_kl_loss", "True", (f"{ACTOR}.kl_loss_coef=0.5",)),
    (f"{ACTOR}.kl_loss_coef", "5", KL),
    (f"{ACTOR}.kl_loss_type", "full", KL),
    (f"{ACTOR}.ppo_epochs", "2", ()),
    (f"{ACTOR}.ppo_mini_batch_size", "4", ()),
    (f"{ACTOR}.shuffle", "True", ()),
    (f"{ACTOR}.data_loader_seed", "5", (f"{ACTOR}.shuffle=True",)),
    (f"{ACTOR}.grad_clip", "0.01", SGD),
    (f"{CRITIC}.cliprange_value", "0.01", (*GAE, f"{CRITIC}.ppo_epochs=3", f"{CRITIC}.optim.lr=0.03")),
    (f"{CRITIC}.loss_agg_mode", "seq-mean-token-sum", (*GAE, *SGD)),
    (f"{CRITIC}.ppo_epochs", "2", GAE),
    (f"{CRITIC}.ppo_mini_batch_size", "4", GAE),
    (f"{CRITIC}.shuffle", "True", GAE),
    (f"{CRITIC}.data_loader_seed", "5", (*GAE, f"{CRITIC}.shuffle=True")),
    (f"{CRITIC}.grad_clip", "0.01", (*GAE, *SGD)),
    ("reward_model.overlong_buffer.enable", "True", (*PLAIN, "reward_model.overlong_buffer.len=6")),
    ("reward_model.overlong_buffer.len", "3", OVERLONG),
    ("reward_model.overlong_buffer.penalty_factor", "9", OVERLONG),
    (f"{ROLLOUT}.use_fire_sampling", "True", ()),
    (f"{ROLLOUT}.fire_temperature", "0.5", (f"{ROLLOUT}.use_fire_sampling=True",)),
]

Runs = Callable[..., Run]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, arithmetic_dir: Path) -> Runs:
    """A run of two steps with the given overrides; the same one is run once."""
    stage = Stage(tmp_path_factory.mktemp("options"), tiny_model_dir, arithmetic_dir)
    finished: dict[tuple[str, ...], Run] = {}

    def of(*more: str) -> Run:
        if more not in finished:
            finished[more] = stage.run_ppo(f"run_{len(finished)}", f"{REF}.log_prob_micro_batch_size_per_gpu=8", *more)
        return finished[more]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "base"), [pytest.param(*case, marks=shows(case[0]), id=case[0]) for case in CASES]
)
def test_the_option_changes_what_is_trained(run: Runs, key: str, value: str, base: tuple[str, ...]) -> None:
    role = "critic" if key.startswith("critic.") else "actor"
    step = 3 if THREE_STEPS[0] in base else 2
    without, with_it = run(*base), run(*base, f"{key}={value}")
    assert difference(without.weights(step, role), with_it.weights(step, role)) > 2e-7
    assert all(math.isfinite(value) for line in with_it.results() for value in line.values())
