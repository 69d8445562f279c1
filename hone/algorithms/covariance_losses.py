"""Clip-Cov and KL-Cov (The Entropy Mechanism of RL for Reasoning LMs, arXiv 2505.22617): hold back the few tokens
whose log-probability and advantage vary together most, because those use up the policy's entropy.

The tokens are picked among the tokens of a whole mini-batch; a caller that cuts it into micro-batches picks first, with
the functions here, and hands the `selection` to the loss.
"""

import torch
from torch import Tensor

from .kl import magnitude
from .masking import masked_mean, select
from .policy_loss_inputs import Metrics, PolicyLossInputs, PolicyLossParams, Tokens, register_policy_loss


@register_policy_loss("clip_cov")
def clip_cov(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """The clipped surrogate of PPO, without the selected tokens. Their share is pg_clipfrac."""
    t = Tokens.of(x)
    selection = x.selection
    if selection is None:
        selection = clip_cov_selection(t.logprobs, t.advantages, t.mask, p)
    ratio = t.clamped_log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - p.clip_ratio_low, 1 + p.clip_ratio_high)
    surrogate = torch.max(-t.advantages * ratio, -t.advantages * clipped_ratio)
    return t.result(select(surrogate, ~selection), clipped=selection)


@register_policy_loss("kl_cov")
def kl_cov(x: PolicyLossInputs, p: PolicyLossParams) -> tuple[Tensor, Metrics]:
    """-A r, plus a penalty `ppo_kl_coef` |d| on the selected tokens. ppo_kl is the mean of |d|."""
    t = Tokens.of(x)
    selection = x.selection
    if selection is None:
        selection = kl_cov_selection(t.logprobs, t.advantages, t.mask, p)
    distance = magnitude(t.clamped_log_ratio)
    loss = -t.advantages * t.clamped_log_ratio.exp() + p.ppo_kl_coef * select(distance, selection)
    return t.result(loss, kl=distance)


def clip_cov_selection(
    logprobs: Tensor, advantages: Tensor, mask: Tensor, p: PolicyLossParams, generator: torch.Generator | None = None
) -> Tensor:
    """Random choice of a share `clip_cov_ratio` of the trainable tokens (at least one) among those whose covariance
    lies between `clip_cov_lb` and `clip_cov_ub`; bool in the shape of `mask`. All tensors have one shape.

    `generator` is a CPU generator (None: torch's global one), so the choice is the same on every device.
    """
    covariance = token_covariance(logprobs, advantages, mask)
    inside = mask & (covariance > p.clip_cov_lb) & (covariance < p.clip_cov_ub)
    candidates = inside.flatten().nonzero().squeeze(1)
    shuffled = candidates[torch.randperm(len(candidates), generator=generator).to(candidates.device)]
    return _as_mask(shuffled[: _share(mask, p.clip_cov_ratio)], mask)


def kl_cov_selection(logprobs: Tensor, advantages: Tensor, mask: Tensor, p: PolicyLossParams) -> Tensor:
    """The share `kl_cov_ratio` of the trainable tokens (at least one) with the highest covariance; bool, as `mask`."""
    covariance = torch.where(mask, token_covariance(logprobs, advantages, mask), -torch.inf)
    return _as_mask(covariance.flatten().topk(_share(mask, p.kl_cov_ratio)).indices, mask)


def token_covariance(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(logp - mean logp) (A - mean A) of every trainable token, float64, 0 under the mask."""
    logprobs, advantages = select(logprobs.detach(), mask).double(), select(advantages, mask).double()
    return select((logprobs - masked_mean(logprobs, mask)) * (advantages - masked_mean(advantages, mask)), mask)


def _share(mask: Tensor, ratio: float) -> int:
    """`ratio` of the trainable tokens, rounded down but at least one of them when there are any."""
    trainable = int(mask.sum())
    return min(trainable, max(1, int(ratio * trainable)))


def _as_mask(indices: Tensor, like: Tensor) -> Tensor:
    selected = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    selected[indices] = True
    return selected.view_as(like)
