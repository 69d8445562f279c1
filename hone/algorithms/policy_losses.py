"""Policy losses that compare the new policy with the one that sampled: PPO and its descendants.

Notation: d = logp - old_logp, r = exp(d), A the advantage. Importance weights of `importance.py` multiply what
these functions return.
"""

import torch
from torch import Tensor

from . import covariance_losses
from .groups import masked_group_mean
from .masking import select
from .policy_loss_inputs import (
    POLICY_LOSSES,
    Metrics,
    PolicyLoss,
    PolicyLossInputs,
    PolicyLossParams,
    Tokens,
    get_policy_loss,
    register_policy_loss,
)

__all__ = [
    "POLICY_LOSSES",
    "Metrics",
    "PolicyLoss",
    "PolicyLossInputs",
    "PolicyLossParams",
    "covariance_losses",
    "get_policy_loss",
    "register_policy_loss",
]

MAX_SEQUENCE_LOG_RATIO = 10.0
MAX_PROBABILITY = 1.0 - 1e-7  # the largest for which log(1 - p) is finite in fp32


@register_policy_loss("vanilla")
def vanilla(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """Clipped surrogate (PPO, arXiv 1707.06347, equation 7), bounded by -A c where A < 0 (dual clip, arXiv
    1912.09729)."""
    t = Tokens.of(x)
    unclipped, clipped = _surrogates(t.clamped_log_ratio.exp(), t.advantages, p)
    pessimistic = torch.max(unclipped, clipped)
    bound = -t.advantages * p.clip_ratio_c
    dual = (t.advantages < 0) & (pessimistic > bound)
    return t.result(torch.where(dual, bound, pessimistic), clipped=clipped > unclipped, lower=dual)


@register_policy_loss("gspo")
def gspo(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """Clips the length-normalised ratio of the trajectory; each token carries its own gradient (GSPO-token, arXiv
    2507.18071, equations 13 and 14)."""
    t = Tokens.of(x)
    sequence = masked_group_mean(t.log_ratio.detach(), x.segment_ids, t.mask)
    log_ratio = t.logprobs - t.logprobs.detach() + sequence
    ratio = log_ratio.clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    unclipped, clipped = _surrogates(ratio, t.advantages, p)
    return t.result(torch.max(unclipped, clipped), clipped=clipped > unclipped)


@register_policy_loss("cispo")
def cispo(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """The clipped ratio is a constant weight, so no token loses its gradient (MiniMax-M1, arXiv 2506.13585,
    equations 4 and 5)."""
    t = Tokens.of(x)
    ratio = t.clamped_log_ratio.detach().exp()
    weight = ratio.clamp(1 - p.clip_ratio_low, 1 + p.clip_ratio_high)
    return t.result(-weight * t.advantages * t.logprobs, clipped=weight != ratio)


@register_policy_loss("sapo")
def sapo(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """A smooth gate 4/tau sigmoid(tau (r - 1)) in place of the clip, steeper for A <= 0 (Soft Adaptive Policy
    Optimization, arXiv 2511.20347)."""
    t = Tokens.of(x)
    tau = torch.where(t.advantages > 0, p.tau_pos, p.tau_neg).to(t.logprobs.dtype)
    gate = torch.sigmoid(tau * (t.clamped_log_ratio.exp() - 1)) * 4 / tau
    return t.result(-gate * t.advantages)


@register_policy_loss("gpg")
def gpg(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """-A logp, the plain policy gradient (GPG, arXiv 2504.02546)."""
    t = Tokens.of(x)
    return t.result(-t.advantages * t.logprobs)


@register_policy_loss("geo_mean")
def geo_mean(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """Geometric mean of the trajectory's ratios, each clipped in log space on the pessimistic side (GMPO, arXiv
    2507.20673), times its mean advantage.

    Every token carries the loss of its trajectory: the paper's objective, a mean over trajectories, is
    loss_agg_mode seq-mean-token-mean. Here clip_ratio_low/high bound d, not r.
    """
    t = Tokens.of(x)
    d, sign = t.clamped_log_ratio, t.advantages.sign()
    bounded = d.clamp(-p.clip_ratio_low, p.clip_ratio_high)
    pessimistic = torch.min(sign * d, sign * bounded) * sign
    ratio = masked_group_mean(pessimistic, x.segment_ids, t.mask).exp()
    advantage = masked_group_mean(t.advantages, x.segment_ids, t.mask)
    outside = bounded != d
    return t.result(-advantage * ratio, clipped=outside & (sign > 0), lower=outside & (sign < 0))


@register_policy_loss("dppo_tv")
def dppo_tv(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """Trust region on the total variation of (this token, any other token): |p - p_old| (DPPO, arXiv 2602.04879)."""
    t = Tokens.of(x)
    new, old = t.logprobs.detach().exp(), t.old_logprobs.exp()
    return _divergence_masked(t, (new - old).abs(), p)


@register_policy_loss("dppo_kl")
def dppo_kl(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """Trust region on the KL of (this token, any other token): p_old log(p_old/p) + (1-p_old) log((1-p_old)/(1-p))
    (DPPO, arXiv 2602.04879)."""
    t = Tokens.of(x)
    new = t.logprobs.detach().exp().clamp(max=MAX_PROBABILITY)
    old = t.old_logprobs.exp().clamp(max=MAX_PROBABILITY)
    divergence = -old * t.log_ratio.detach() + (1 - old) * (torch.log1p(-old) - torch.log1p(-new))
    return _divergence_masked(t, divergence, p)


@register_policy_loss("dro")
def dro(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """-A d + tau/2 d^2 per token: the square (A - tau d)^2 / (2 tau) of Direct Reward Optimisation (arXiv
    2405.19107) without its constant, against the policy that sampled; tau is `ppo_kl_coef`.

    d is not clamped, or a token far away would feel no pull back.
    """
    t = Tokens.of(x)
    return t.result(-t.advantages * t.log_ratio + 0.5 * p.ppo_kl_coef * t.log_ratio.square())


def _surrogates(ratio: Tensor, advantages: Tensor, p: PolicyLossParams) -> tuple[Tensor, Tensor]:
    """-A r and -A clip(r)."""
    return -advantages * ratio, -advantages * ratio.clamp(1 - p.clip_ratio_low, 1 + p.clip_ratio_high)


def _divergence_masked(t: Tokens, divergence: Tensor, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """-sg(min(r, c)) A logp, and 0 where a step would lead further away from a policy that is already too far.

    The bound on the divergence is clip_ratio_high where A > 0 and clip_ratio_low elsewhere.
    """
    d = t.clamped_log_ratio.detach()
    outwards = torch.where(t.advantages > 0, d > 0, d < 0)
    bound = torch.where(t.advantages > 0, p.clip_ratio_high, p.clip_ratio_low)
    blocked = outwards & (divergence > bound)
    weight = d.exp().clamp(max=p.clip_ratio_c)
    loss = select(-weight * t.advantages * t.logprobs, ~blocked)
    return t.result(loss, clipped=blocked, lower=d.exp() > p.clip_ratio_c)
