"""Estimators that compare a trajectory with the others of its prompt: GRPO, RLOO, OPO, GPG and their relatives.

Sums are float64 and a group of equal rewards is recognised as such: it gives exactly 0, not a rounding error divided
by a tiny standard deviation. Returns are the advantages (the same tensor) since none of these trains a critic.
"""

import torch
from torch import Tensor

from .advantage_inputs import AdvantageInputs, register_estimator
from .groups import dense_ids, group_statistics, group_sum, rank_in_group
from .masking import masked_whiten, select

STD_EPS = 1e-6


@register_estimator("grpo")
def grpo(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """(R - mean) / (std + eps) of the group (DeepSeekMath, arXiv 2402.03300, section 4.1.2), or R - mean without the
    std (Dr. GRPO, arXiv 2503.20783).

    A trajectory alone in its group keeps R / (1 + eps); when its siblings are there but not scored it gets 0.
    """
    rewards = x.rewards()
    group = group_statistics(rewards, x.group_ids, x.counted())
    centred = torch.where(group.constant, 0.0, rewards - group.mean)
    alone = (group.count == 1) & ~_has_unscored_sibling(x)
    centred = torch.where(alone, rewards, centred)
    if x.norm_by_std:
        centred = centred / (torch.where(alone, 1.0, group.std) + STD_EPS)
    return _spread(centred, x)


@register_estimator("grpo_passk")
def grpo_passk(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The best of a group gets best - second best (over std + eps), the others 0 (Optimizing Language Models
    for Inference Time Objectives, arXiv 2503.19595). A group with fewer than two counted trajectories gets 0."""
    rewards, counted = x.rewards(), x.counted()
    rank, second = rank_in_group(rewards, x.group_ids, counted)
    group = group_statistics(rewards, x.group_ids, counted)
    margin = torch.where((rank == 0) & (group.count > 1), rewards - second, 0.0)
    if x.norm_by_std:
        margin = margin / (group.std + STD_EPS)
    return _spread(margin, x)


@register_estimator("rloo")
def rloo(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """R minus the mean of the other trajectories of the group (RLOO, arXiv 2402.14740), which equals
    (R - mean) n / (n - 1). A trajectory without others gets 0."""
    rewards = x.rewards()
    group = group_statistics(rewards, x.group_ids, x.counted())
    leave_one_out = (rewards - group.mean) * group.count / (group.count - 1).clamp(min=1)
    return _spread(torch.where(group.constant, 0.0, leave_one_out), x)


@register_estimator("opo")
def opo(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """R minus the length-weighted mean of the group, the variance-optimal baseline when gradient norms grow with the
    length (On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585)."""
    rewards = x.rewards()
    ids = dense_ids(x.group_ids)
    lengths = x.trainable().sum(dim=1, dtype=torch.float64)
    weighted = group_sum(lengths * rewards, ids, ids.numel())
    baseline = weighted / group_sum(lengths, ids, ids.numel()).clamp(min=1)
    constant = group_statistics(rewards, ids, x.counted()).constant
    return _spread(torch.where(constant, 0.0, rewards - baseline[ids]), x)


@register_estimator("gpg")
def gpg(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """(R - group mean) * batch / number of non-zero rewards (Group Policy Gradient, arXiv 2504.02546).
    The batch is the trajectories that count."""
    rewards, counted = x.rewards(), x.counted()
    scale = counted.sum() / torch.count_nonzero(rewards).clamp(min=1)
    return _spread(_centred(rewards, x) * scale, x)


@register_estimator("reinforce_plus_plus_baseline")
def reinforce_plus_plus_baseline(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """R - group mean, whitened over all trainable tokens of the step (REINFORCE++, arXiv 2501.03262)."""
    advantages, _ = _spread(_centred(x.rewards(), x), x)
    advantages = masked_whiten(advantages, x.trainable())
    return advantages, advantages


@register_estimator("reward")
def reward(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The trajectory's reward on each of its tokens, no baseline (REINFORCE, Williams 1992)."""
    return _spread(x.rewards(), x)


def _centred(rewards: Tensor, x: AdvantageInputs) -> Tensor:
    group = group_statistics(rewards, x.group_ids, x.counted())
    return torch.where(group.constant, 0.0, rewards - group.mean)


def _has_unscored_sibling(x: AdvantageInputs) -> Tensor:
    """Rows whose group lost a member to a missing reward, bool [B]."""
    if x.scored is None:
        return torch.zeros(len(x.group_ids), dtype=torch.bool, device=x.group_ids.device)
    ids = dense_ids(x.group_ids)
    return group_sum(~x.scored, ids, ids.numel())[ids] > 0


def _spread(per_trajectory: Tensor, x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """One number per trajectory [B] onto its trainable tokens [B, T], as advantages and as returns."""
    advantages = select(per_trajectory.float()[:, None], x.trainable())
    return advantages, advantages
