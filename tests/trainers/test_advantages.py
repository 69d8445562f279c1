"""What the update reads: KL in the reward, importance weights, and which tokens stay."""

from __future__ import annotations

import math

import pytest
import torch

from hone.algorithms import AdaptiveKL, FixedKL
from hone.batch import Batch
from hone.config.schema.algorithm import AlgorithmConfig, KlControl
from hone.trainers.advantages import add_advantages, add_importance, estimator_of, kl_controller, mismatch
from tests.trainers.ragged import random_batch


def settings(**changes: object) -> AlgorithmConfig:
    return AlgorithmConfig.model_validate({"adv_estimator": "grpo", **changes})


def advantages(
    batch: Batch, config: AlgorithmConfig, controller: FixedKL | AdaptiveKL
) -> tuple[Batch, dict[str, float]]:
    return add_advantages(batch, config, estimator_of(config), controller)


def trained_tokens(batch: Batch, row: int) -> list[int]:
    """Places of a row's trainable tokens in the flat columns."""
    span = range(int(batch.offsets[row]), int(batch.offsets[row + 1]))
    return [t for t in span if batch["response_mask"][t]]


def kl_by_hand(x: float, kind: str) -> float:
    return {"kl": x, "abs": abs(x), "mse": x * x / 2, "low_var_kl": min(math.exp(-x) + x - 1, 10.0)}[kind]


@pytest.mark.parametrize("kind", ["kl", "abs", "mse", "low_var_kl"])
@pytest.mark.parametrize("seed", [0, 1])
def test_kl_in_the_reward_equals_a_loop_over_trainable_tokens(kind: str, seed: int) -> None:
    batch = random_batch(6, seed=seed)
    config = settings(use_kl_in_reward=True, kl_penalty=kind)
    found, metrics = advantages(batch, config, FixedKL(0.3))
    expected = torch.zeros(batch.num_tokens)
    means = []
    for row in range(len(batch)):
        places = trained_tokens(batch, row)
        kls = [kl_by_hand(float(batch["old_logprobs"][t] - batch["ref_logprobs"][t]), kind) for t in places]
        for t, kl in zip(places, kls):
            expected[t] = -0.3 * kl + (float(batch["score"][row]) if t == places[-1] else 0.0)
        means += [sum(kls) / len(kls)] if kls else []
    torch.testing.assert_close(found["rewards"], expected, rtol=1e-5, atol=1e-6)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(sum(means) / len(means), rel=1e-5)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.3


@pytest.mark.parametrize("column", ["old_logprobs", "ref_logprobs"])
def test_what_stands_under_the_mask_never_reaches_a_reward(column: str) -> None:
    batch, config = random_batch(6, seed=3), settings(use_kl_in_reward=True)
    spoiled = batch.with_tokens(**{column: torch.where(batch["response_mask"].bool(), batch[column], torch.nan)})
    clean, _ = advantages(batch, config, FixedKL(0.3))
    found, metrics = advantages(spoiled, config, FixedKL(0.3))
    for name in ("rewards", "advantages", "returns"):
        assert torch.equal(found[name], clean[name])
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(("target", "factor"), [(1e-6, 1.2), (1e6, 0.8)])
def test_the_adaptive_coefficient_moves_after_it_was_used(target: float, factor: float) -> None:
    control = KlControl(type="adaptive", kl_coef=0.5, target_kl=target, horizon=6)
    controller = kl_controller(control)
    assert isinstance(controller, AdaptiveKL)
    config = settings(use_kl_in_reward=True, kl_penalty="mse")
    _, metrics = advantages(random_batch(6, seed=0), config, controller)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert controller.value == pytest.approx(0.5 * factor)  # 6 trajectories over a horizon of 6


def test_the_fixed_coefficient_stays() -> None:
    controller = kl_controller(KlControl(kl_coef=0.5))
    advantages(random_batch(6, seed=0), settings(use_kl_in_reward=True), controller)
    assert controller.value == 0.5


def test_grpo_compares_within_a_prompt_and_leaves_out_what_was_not_scored() -> None:
    batch = random_batch(6, seed=4, per_prompt=3).with_rows(
        score=torch.tensor([1.0, 0.0, 9.0, 2.0, 2.0, 2.0]), scored=torch.tensor([True, True, False, True, True, True])
    )
    found, _ = advantages(batch, settings(), FixedKL(0.0))
    std = math.sqrt(0.5)
    expected = [0.5 / (std + 1e-6), -0.5 / (std + 1e-6), 0.0, 0.0, 0.0, 0.0]
    for row, value in enumerate(expected):
        tokens = found["advantages"][trained_tokens(batch, row)]
        torch.testing.assert_close(tokens, torch.full_like(tokens, value))
    assert not found["advantages"][~batch["response_mask"].bool()].any()


def test_without_correction_every_trainable_token_stays_and_the_mismatch_is_still_measured() -> None:
    batch = random_batch(6, seed=0)
    found, metrics = add_importance(batch, settings()), mismatch(batch, settings())
    assert torch.equal(found["loss_mask"], batch["response_mask"].bool())
    assert "importance_weights" not in found
    mask = batch["response_mask"].bool()
    difference = (batch["old_logprobs"][mask].exp() - batch["rollout_logprobs"][mask].exp()).abs()
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(float(difference.max()), rel=1e-5)
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(float(difference.mean()), rel=1e-5)
    assert {"rollout_corr/kl", "rollout_corr/k3_kl", "rollout_corr/ess"} <= metrics.keys()


def test_truncated_weights_are_the_ratio_cut_at_the_threshold() -> None:
    batch = random_batch(6, seed=1)
    found = add_importance(batch, settings(rollout_is=True, rollout_is_threshold=1.5))
    mask = batch["response_mask"].bool()
    ratio = (batch["old_logprobs"] - batch["rollout_logprobs"]).exp().clamp(max=1.5)
    torch.testing.assert_close(found["importance_weights"][mask], ratio[mask])
    assert torch.equal(found["loss_mask"], mask)


def test_masked_weights_and_vetoed_trajectories_leave_the_loss() -> None:
    batch = random_batch(6, seed=1)
    mask = batch["response_mask"].bool()
    ratio = (batch["old_logprobs"] - batch["rollout_logprobs"]).exp()
    found = add_importance(batch, settings(rollout_is=True, rollout_is_threshold=1.5, rollout_is_mode="mask"))
    assert torch.equal(found["loss_mask"], mask & (ratio <= 1.5) & (ratio >= 1 / 1.5))
    assert found["loss_mask"].any() and not torch.equal(found["loss_mask"], mask)
    dropped = settings(rollout_is=True, rollout_is_threshold=1.5, rollout_is_mode="mask", rollout_is_weights=False)
    unweighted = add_importance(batch, dropped)
    assert torch.equal(unweighted["loss_mask"], found["loss_mask"]) and "importance_weights" not in unweighted
    found = add_importance(batch, settings(rollout_is=True, rollout_is_mode="veto", rollout_is_veto_threshold=0.3))
    for row in range(len(batch)):
        places = trained_tokens(batch, row)
        kept = all(float(ratio[t]) >= 0.3 for t in places)
        assert found["loss_mask"][places].tolist() == [kept] * len(places)
    assert 0 < int(found["loss_mask"].sum()) < int(mask.sum())
