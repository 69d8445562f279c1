"""Policy filtration (PF-PPO, arXiv 2409.06957): resample the trajectories of a step so that those whose reward is most
reliable, the very good and the very bad ones, are trained on more often."""

import torch
from torch import Tensor

REWEIGHT_METHODS = ("pow", "max_min", "max_random")


def resample_indices(
    rewards: Tensor, method: str, weight_pow: float, generator: torch.Generator | None = None
) -> Tensor:
    """As many row numbers as `rewards` [B] has, drawn with replacement, long [B]; `generator` is a CPU generator.

    Weights: pow |R|^weight_pow (all equal when every reward is 0); max_min 1 for the best and worst rewards, else 0;
    max_random 0.4 for the best, else 0.1. A NaN reward is a missing one: never drawn. Without any: every row once.
    """
    if method not in REWEIGHT_METHODS:
        raise ValueError(f"unknown pf_ppo.reweight_method {method!r}; choose one of {', '.join(REWEIGHT_METHODS)}")
    scored = ~rewards.isnan()
    if not bool(scored.any()):
        return torch.arange(len(rewards), device=rewards.device)
    weights = torch.zeros(len(rewards), dtype=torch.float64)
    weights[scored.cpu()] = _weights(rewards[scored].cpu().double(), method, weight_pow)
    return torch.multinomial(weights, len(rewards), replacement=True, generator=generator).to(rewards.device)


def _weights(rewards: Tensor, method: str, weight_pow: float) -> Tensor:
    best = rewards == rewards.max()
    if method == "max_min":
        return (best | (rewards == rewards.min())).double()
    if method == "max_random":
        return torch.where(best, 0.4, 0.1).double()
    largest = rewards.abs().max()
    if largest == 0:
        return torch.ones_like(rewards)
    return (rewards.abs() / largest).pow(weight_pow)  # scaled first, so that no power overflows
