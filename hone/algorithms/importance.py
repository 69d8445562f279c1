"""Importance weights that correct for a rollout engine whose log-probs differ from the trainer's, and the numbers that
say how much they differ. Weights are constants: nothing here carries a gradient."""

import math

import torch
from torch import Tensor

from .groups import group_sum
from .masking import select

LEVELS = ("token", "sequence", "geometric")
MODES = ("truncate", "mask", "veto", "none")
MAX_LOG_WEIGHT = 20.0
BLOCK = 1 << 16  # tokens whose numbers in between stay in the cache


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
    if not bool(mask.any()):
        return {}
    segments = int(segment_ids.max()) + 1
    totals, counts = (torch.zeros(segments, dtype=torch.float64, device=mask.device) for _ in range(2))
    bounds = _bounds(threshold, threshold_lower)
    blocks: list[Tensor] = []
    for columns in zip(*(x.split(BLOCK) for x in (old_logprobs, rollout_logprobs, mask, segment_ids)), strict=True):
        old, rollout, segment = (column[columns[2]] for column in (columns[0], columns[1], columns[3]))
        q = (old - rollout).clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT)
        totals.index_add_(0, segment, q.double())
        counts.index_add_(0, segment, torch.ones_like(q, dtype=torch.float64))
        blocks.append(_token_sums(q, old, rollout, bounds))
    some = counts > 0
    numbers = _of_tokens(torch.stack(blocks))
    numbers["rollout_corr/ppl_ratio"] = (-totals[some] / counts[some]).exp().mean()
    if level != "token":
        sums = totals[some] / counts[some] if level == "geometric" else totals[some]
        weights = sums.clamp(-MAX_LOG_WEIGHT, MAX_LOG_WEIGHT).exp()
        sums_of = weights.sum(), weights.square().sum(), (weights > bounds[1]).sum(), (weights < bounds[0]).sum()
        numbers |= _of_weights(len(weights), *sums_of)
    return {name: float(value) for name, value in numbers.items()}


def _token_sums(q: Tensor, old: Tensor, rollout: Tensor, bounds: tuple[float, float]) -> Tensor:
    """[10] float64 of a block of trainable tokens: their number, sums of q, exp(q) - 1 - q, w and w^2, how many w are
    above and below the bounds, and of the differences of probabilities the sum, the squares about their mean and the
    largest."""
    weights = q.double().exp()
    difference = (old.double().exp() - rollout.double().exp()).abs()
    about_mean = difference - difference.sum() / max(len(q), 1)
    return torch.stack(
        [
            torch.tensor(len(q), dtype=torch.float64, device=q.device),
            q.sum(dtype=torch.float64),
            (torch.expm1(q) - q).sum(dtype=torch.float64),
            weights.sum(),
            weights.square().sum(),
            (weights > bounds[1]).sum().double(),
            (weights < bounds[0]).sum().double(),
            difference.sum(),
            about_mean.square().sum(),
            difference.amax() if len(q) else q.new_zeros((), dtype=torch.float64),
        ]
    )


def _of_tokens(blocks: Tensor) -> dict[str, Tensor]:
    """[blocks, 10] of `_token_sums`. The variance is put together from those of the blocks (Chan et al. 1979)."""
    count, q, k3, weights, squares, above, below, difference, about_mean, _ = blocks.sum(0)
    mean = difference / count
    between = blocks[:, 0] * (blocks[:, 7] / blocks[:, 0].clamp(min=1) - mean).square()
    return {
        "rollout_corr/kl": -q / count,
        "rollout_corr/k3_kl": k3 / count,
        "rollout_corr/chi2_token": squares / count - 1.0,
        **_of_weights(count, weights, squares, above, below),
        "training/rollout_probs_diff_max": blocks[:, 9].amax(),
        "training/rollout_probs_diff_mean": mean,
        "training/rollout_probs_diff_std": ((about_mean + between.sum()) / (count - 1).clamp(min=1)).sqrt(),
    }


def _of_weights(count: Tensor | int, total: Tensor, squares: Tensor, above: Tensor, below: Tensor) -> dict[str, Tensor]:
    return {
        "rollout_corr/ess": total.square() / (count * squares),
        "rollout_corr/share_above": above / count,
        "rollout_corr/share_below": below / count,
    }


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
