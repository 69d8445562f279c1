"""Importance weights that correct for a rollout engine whose log-probs differ from the trainer's, and the numbers that
say how much they differ. Weights are constants: nothing here carries a gradient."""

import math

import torch
from torch import Tensor

from .groups import group_sum
from .masking import masked_mean, select

LEVELS = ("token", "sequence", "geometric")
MODES = ("truncate", "mask", "veto", "none")
MAX_LOG_WEIGHT = 20.0


@torch.no_grad()
def importance_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    segment_ids: Tensor,
    *,
    level: str,
    mode: str,
    threshold: float | None,
    threshold_lower: float | None,
    veto_threshold: float | None,
) -> tuple[Tensor, Tensor]:
    """Weight of each token's loss and the tokens that stay in the loss (bool); all in one shape, packed or [B, T].

    q = old_logp - rollout_logp on trainable tokens. Level token: exp(q); sequence: exp(sum q) of the trajectory;
    geometric: exp(mean q). Mode truncate: at most `threshold` (truncated importance sampling, as in IMPALA,
    arXiv 1802.01561); mask: tokens outside [threshold_lower, threshold] leave; veto and none: unbounded. In every
    mode a trajectory with a token of exp(q) < `veto_threshold` leaves. `segment_ids` are the trajectories, 0 .. S-1.
    The weight is 0 where a token does not stay. `threshold_lower` None: 1 / threshold.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown rollout_is_level {level!r}; choose one of {', '.join(LEVELS)}")
    if mode not in MODES:
        raise ValueError(f"unknown rollout_is_mode {mode!r}; choose one of {', '.join(MODES)}")
    log_ratio = _log_ratio(old_logprobs, rollout_logprobs, mask)
    weights = _weights(log_ratio, mask, segment_ids, level)
    keep = mask
    if veto_threshold is not None:
        keep = keep & ~_vetoed(log_ratio, mask, segment_ids, veto_threshold)
    if mode == "truncate" and threshold is not None:
        weights = weights.clamp(max=threshold)
    if mode == "mask":
        lower, upper = _bounds(threshold, threshold_lower)
        keep = keep & (weights >= lower) & (weights <= upper)
    return select(weights, keep), keep


@torch.no_grad()
def diagnostics(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor,
    segment_ids: Tensor,
    *,
    level: str = "token",
    threshold: float | None = None,
    threshold_lower: float | None = None,
) -> dict[str, float]:
    """How far the rollout's log-probs are from the trainer's; {} when nothing is trainable.

    kl and k3_kl estimate KL(rollout || trainer) per token; ppl_ratio is the mean over trajectories of the trainer's
    perplexity over the rollout's; chi2_token is E[w^2] - 1 of the token weights. ess, the effective sample size as a
    share (sum w)^2 / (n sum w^2), and the shares of weights outside the bounds count tokens at level token and
    trajectories otherwise; without bounds the shares are 0.
    """
    trained = mask.nonzero().squeeze(1)
    if not len(trained):
        return {}
    # From here on without the rest: what is under the mask may be anything, and most of a batch.
    old_logprobs, rollout_logprobs = old_logprobs[trained], rollout_logprobs[trained]
    segment_ids, mask = segment_ids[trained], mask[trained]
    q = _log_ratio(old_logprobs, rollout_logprobs, mask)
    per_trajectory = -_per_segment_mean(q, mask, segment_ids)
    weights = q.double().exp()
    sampled = weights
    if level != "token":
        sampled = _per_segment_mean(select(_weights(q, mask, segment_ids, level), mask), mask, segment_ids)
    lower, upper = _bounds(threshold, threshold_lower)
    values = {
        "rollout_corr/kl": -masked_mean(q, mask),
        "rollout_corr/k3_kl": masked_mean(torch.expm1(q) - q, mask),
        "rollout_corr/ppl_ratio": per_trajectory.exp().mean(),
        "rollout_corr/chi2_token": weights.square().mean() - 1.0,
        "rollout_corr/ess": sampled.sum().square() / (len(sampled) * sampled.square().sum()),
        "rollout_corr/share_above": (sampled > upper).double().mean(),
        "rollout_corr/share_below": (sampled < lower).double().mean(),
    }
    difference = (old_logprobs.double().exp() - rollout_logprobs.double().exp()).abs()
    values["training/rollout_probs_diff_max"] = difference.max()
    values["training/rollout_probs_diff_mean"] = difference.mean()
    values["training/rollout_probs_diff_std"] = difference.std() if len(difference) > 1 else torch.zeros(())
    return {name: float(value) for name, value in values.items()}


def _log_ratio(old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    q = select(old_logprobs, mask) - select(rollout_logprobs, mask)
    return q.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)


def _weights(log_ratio: Tensor, mask: Tensor, segment_ids: Tensor, level: str) -> Tensor:
    """Unbounded weight of every position. A sum over a trajectory is clamped like a token's, or long ones overflow."""
    if level == "token" or log_ratio.numel() == 0:
        return log_ratio.exp()
    segments = int(segment_ids.max()) + 1
    total = group_sum(log_ratio, segment_ids, segments)
    if level == "geometric":
        total = total / group_sum(mask, segment_ids, segments).clamp(min=1)
    return total.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp()[segment_ids].to(log_ratio.dtype)


def _vetoed(log_ratio: Tensor, mask: Tensor, segment_ids: Tensor, threshold: float) -> Tensor:
    """Positions of trajectories with a catastrophic token."""
    if log_ratio.numel() == 0:
        return mask
    catastrophic = mask & (log_ratio.exp() < threshold)
    return group_sum(catastrophic, segment_ids, int(segment_ids.max()) + 1)[segment_ids] > 0


def _bounds(threshold: float | None, threshold_lower: float | None) -> tuple[float, float]:
    upper = math.inf if threshold is None else threshold
    lower = 1.0 / upper if threshold_lower is None else threshold_lower
    return lower, upper


def _per_segment_mean(values: Tensor, mask: Tensor, segment_ids: Tensor) -> Tensor:
    """Mean of each trajectory that has a trainable token, float64."""
    segments = int(segment_ids.max()) + 1
    counts = group_sum(mask, segment_ids, segments)
    return (group_sum(values, segment_ids, segments) / counts.clamp(min=1))[counts > 0]
