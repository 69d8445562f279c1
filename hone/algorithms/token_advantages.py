"""Estimators that follow rewards through time: GAE, REINFORCE++, ReMax and plain token rewards.

Time counts trainable tokens only: a tool's answer between two of them takes no step of the recursion.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .advantage_inputs import AdvantageInputs, register_estimator
from .masking import masked_whiten, masked_whiten_, select

BLOCK = 32  # time steps transposed at once, so that the copies stay in the cache


@register_estimator("gae")
def gae(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16), whitened over all trainable tokens of the
    step; returns are A + V before whitening.

    A trajectory without a score has advantage 0 and returns equal to its values, so the critic learns nothing from it.
    """
    if x.values is None:
        raise ValueError("adv_estimator gae needs values; a critic computes them, or choose an estimator without one")
    trainable = x.trainable()
    advantages = _advantage_recursion(x.token_rewards, x.values, trainable, x.gamma, x.lam)
    returns = select(x.values, x.mask).float().add_(advantages)
    return masked_whiten_(advantages, trainable), returns


@register_estimator("reinforce_plus_plus")
def reinforce_plus_plus(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Discounted return of each token, whitened over all trainable tokens of the step (arXiv 2501.03262)."""
    returns = discounted_returns(x, x.gamma)
    return masked_whiten(returns, x.trainable()), returns


@register_estimator("remax")
def remax(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """Rewards from this token on minus the reward of a greedy rollout of the prompt (ReMax, arXiv 2310.10505)."""
    if x.greedy_rewards is None:
        raise ValueError("adv_estimator remax needs the reward of a greedy rollout of every prompt (greedy_rewards)")
    returns = discounted_returns(x, gamma=1.0)
    return select(returns - x.greedy_rewards.float()[:, None], x.trainable()), returns


@register_estimator("none")
def token_rewards(x: AdvantageInputs) -> tuple[Tensor, Tensor]:
    """The rewards of the tokens themselves: no baseline, no scaling, no discounting."""
    rewards = select(x.token_rewards, x.trainable()).float()
    return rewards, rewards


def discounted_returns(x: AdvantageInputs, gamma: float) -> Tensor:
    """G_t = r_t + gamma * G of the next trainable token, fp32 [B, T], 0 under the mask."""
    return _advantage_recursion(x.token_rewards, None, x.trainable(), gamma, lam=1.0)


def _advantage_recursion(rewards: Tensor, values: Tensor | None, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """A_t = r_t + gamma V' - V_t + gamma lam A', where ' is the next trainable token (0 after the last), [B, T].

    Without values these are discounted returns.
    """
    advantages = torch.empty(mask.shape, dtype=torch.float32, device=mask.device)
    carry = Carry(*torch.zeros(2, mask.shape[0], device=mask.device))
    for end in range(mask.shape[1], 0, -BLOCK):
        columns = slice(max(0, end - BLOCK), end)
        steps = _by_time(mask[:, columns])
        block = select(_by_time(rewards[:, columns]), steps).float()
        value_block = None if values is None else select(_by_time(values[:, columns]), steps).float()
        carry = _walk_back(block, value_block, steps, carry, gamma, gamma * lam)
        advantages[:, columns] = select(block, steps).t().contiguous()
    return advantages


class Carry(NamedTuple):
    """What the recursion hands from one trainable token to the one before it, each [B]."""

    advantage: Tensor
    value: Tensor


def _walk_back(block: Tensor, values: Tensor | None, steps: Tensor, carry: Carry, gamma: float, decay: float) -> Carry:
    """Turn the rewards in `block` [block, B] into advantages, in place, last time step first."""
    next_advantage, next_value = carry
    for t in range(len(block) - 1, -1, -1):
        advantage = torch.add(block[t], next_advantage, alpha=decay)
        if values is not None:
            advantage.add_(next_value, alpha=gamma).sub_(values[t])
            next_value = torch.where(steps[t], values[t], next_value)
        next_advantage = torch.where(steps[t], advantage, next_advantage)
        block[t] = next_advantage
    return Carry(next_advantage, next_value)


def _by_time(columns: Tensor) -> Tensor:
    """[B, block] -> [block, B], a time step in one contiguous row; copied first, or the transpose strides the cache."""
    return columns.contiguous().t().contiguous()
