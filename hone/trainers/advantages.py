"""From scores to what the update reads: rewards on tokens, importance weights, advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms import (
    AdaptiveKL,
    AdvantageInputs,
    Estimator,
    FixedKL,
    diagnostics,
    get_estimator,
    importance_weights,
    kl_estimate,
    place_rewards,
)
from hone.batch import Batch
from hone.config.schema.algorithm import AlgorithmConfig, KlControl
from hone.errors import UserError
from hone.trainers.scoring import shaped_scores
from hone.user_code import load_function, shapes


def kl_controller(control: KlControl) -> FixedKL | AdaptiveKL:
    if control.type == "adaptive":
        return AdaptiveKL(control.kl_coef, control.target_kl, control.horizon)
    return FixedKL(control.kl_coef)


def estimator_of(algorithm: AlgorithmConfig) -> Estimator:
    """The built-in one, or the user's own, held to what an estimator returns."""
    own = algorithm.custom_estimator
    if own.path is None or own.name is None:
        return get_estimator(algorithm.adv_estimator)
    estimate = load_function(own.path, own.name, section="algorithm.custom_estimator")

    def checked(inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
        result, shape = estimate(inputs), inputs.mask.shape
        if not isinstance(result, tuple) or [getattr(r, "shape", None) for r in result] != [shape, shape]:
            raise UserError(
                f"algorithm.custom_estimator.name={own.name} returned {shapes(result)}: expected "
                f"(advantages, returns), two tensors of the shape of inputs.mask, {tuple(shape)}"
            )
        advantages, returns = (torch.where(inputs.mask, column, 0.0).float() for column in result)
        return advantages, returns

    return checked


def mismatch(batch: Batch, algorithm: AlgorithmConfig) -> dict[str, float]:
    """How far the sampler's log-probs are from the trainer's."""
    return diagnostics(
        *_both_logprobs(batch),
        level=algorithm.rollout_is_level,
        threshold=algorithm.rollout_is_threshold,
        threshold_lower=algorithm.rollout_is_threshold_lower,
    )


def _both_logprobs(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch["old_logprobs"], batch["rollout_logprobs"], batch["response_mask"].bool(), batch.segment_ids


def add_importance(batch: Batch, algorithm: AlgorithmConfig) -> Batch:
    """Column loss_mask (trainable tokens that stay) and importance_weights where they count."""
    if not algorithm.rollout_is:
        return batch.with_tokens(loss_mask=batch["response_mask"].bool())
    weights, keep = importance_weights(
        *_both_logprobs(batch),
        level=algorithm.rollout_is_level,
        mode=algorithm.rollout_is_mode,
        threshold=algorithm.rollout_is_threshold,
        threshold_lower=algorithm.rollout_is_threshold_lower,
        veto_threshold=algorithm.rollout_is_veto_threshold,
    )
    batch = batch.with_tokens(loss_mask=keep)
    return batch.with_tokens(importance_weights=weights) if algorithm.rollout_is_weights else batch


def add_advantages(
    batch: Batch, algorithm: AlgorithmConfig, estimator: Estimator, controller: FixedKL | AdaptiveKL
) -> tuple[Batch, dict[str, float]]:
    """Token columns rewards (the scores, the agent's own on the way, the KL), advantages and returns; the controller
    moves on by the KL it saw."""
    starts = batch["prompt_length"]
    mask = batch.padded("response_mask", starts=starts).bool()
    rewards = place_rewards(shaped_scores(batch), mask)
    if bool(batch["turn_rewards"].any()):
        rewards = rewards + batch.padded("turn_rewards", starts=starts)
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
        greedy_rewards=batch["greedy_reward"] if "greedy_reward" in batch.rows else None,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_by_std=algorithm.norm_adv_by_std_in_grpo,
    )
    advantages, returns = estimator(inputs)
    columns = {"rewards": batch.ragged(rewards, starts=starts), "advantages": batch.ragged(advantages, starts=starts)}
    # Of estimators without values both are one tensor.
    columns["returns"] = columns["advantages"] if returns is advantages else batch.ragged(returns, starts=starts)
    return batch.with_tokens(**columns), metrics


def _rectangle_kl(batch: Batch, kind: str, mask: Tensor) -> Tensor:
    """[B, T]; the exact one was computed with the old log-probs, when both models were at hand."""
    starts = batch["prompt_length"]
    if kind == "full":
        return batch.padded("full_kl", starts=starts)
    old, ref = (torch.where(mask, batch.padded(name, starts=starts), 0.0) for name in ("old_logprobs", "ref_logprobs"))
    return kl_estimate(old, ref, kind)
