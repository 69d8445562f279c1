"""From scores to what the update reads: rewards on tokens, importance weights, advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms import (
    AdaptiveKL,
    AdvantageInputs,
    FixedKL,
    diagnostics,
    get_estimator,
    importance_weights,
    kl_estimate,
    place_rewards,
)
from hone.batch import Batch
from hone.config.schema.algorithm import AlgorithmConfig, KlControl


def kl_controller(control: KlControl) -> FixedKL | AdaptiveKL:
    if control.type == "adaptive":
        return AdaptiveKL(control.kl_coef, control.target_kl, control.horizon)
    return FixedKL(control.kl_coef)


def add_importance(batch: Batch, algorithm: AlgorithmConfig) -> tuple[Batch, dict[str, float]]:
    """Column loss_mask (trainable tokens that stay) and, with rollout_is, importance_weights; diagnostics always."""
    mask = batch["response_mask"].bool()
    arguments = (batch["old_logprobs"], batch["rollout_logprobs"], mask, batch.segment_ids)
    metrics = diagnostics(
        *arguments,
        level=algorithm.rollout_is_level,
        threshold=algorithm.rollout_is_threshold,
        threshold_lower=algorithm.rollout_is_threshold_lower,
    )
    if not algorithm.rollout_is:
        return batch.with_tokens(loss_mask=mask), metrics
    weights, keep = importance_weights(
        *arguments,
        level=algorithm.rollout_is_level,
        mode=algorithm.rollout_is_mode,
        threshold=algorithm.rollout_is_threshold,
        threshold_lower=algorithm.rollout_is_threshold_lower,
        veto_threshold=algorithm.rollout_is_veto_threshold,
    )
    return batch.with_tokens(loss_mask=keep, importance_weights=weights), metrics


def add_advantages(
    batch: Batch, algorithm: AlgorithmConfig, controller: FixedKL | AdaptiveKL
) -> tuple[Batch, dict[str, float]]:
    """Token columns rewards, advantages and returns; the controller moves on by the KL it saw."""
    starts = batch["prompt_length"]
    mask = batch.padded("response_mask", starts=starts).bool()
    rewards = place_rewards(batch["score"], mask)
    metrics: dict[str, float] = {}
    if algorithm.use_kl_in_reward:
        kl = torch.where(mask, _rectangle_kl(batch, algorithm.kl_penalty, mask), 0.0)
        rewards = rewards - controller.value * kl
        per_trajectory = kl.sum(1) / mask.sum(1).clamp(min=1)
        seen = float(per_trajectory[mask.any(1)].mean()) if bool(mask.any()) else 0.0
        metrics = {"actor/reward_kl_penalty": seen, "actor/reward_kl_penalty_coeff": controller.value}
        controller.update(seen, len(batch))
    inputs = AdvantageInputs(
        token_rewards=rewards,
        mask=mask,
        group_ids=batch["group"],
        scored=batch["scored"],
        values=batch.padded("values", starts=starts) if "values" in batch else None,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_by_std=algorithm.norm_adv_by_std_in_grpo,
    )
    advantages, returns = get_estimator(algorithm.adv_estimator)(inputs)
    columns = {"rewards": rewards, "advantages": advantages, "returns": returns}
    return batch.with_tokens(**{k: batch.ragged(v, starts=starts) for k, v in columns.items()}), metrics


def _rectangle_kl(batch: Batch, kind: str, mask: Tensor) -> Tensor:
    starts = batch["prompt_length"]
    old, ref = (torch.where(mask, batch.padded(name, starts=starts), 0.0) for name in ("old_logprobs", "ref_logprobs"))
    return kl_estimate(old, ref, kind)
