"""KL divergence of the policy from a reference: per-token estimators from log-probs of sampled tokens, and the
coefficient that weighs it."""

import math
from typing import Any

import torch
from torch import Tensor

KL_ESTIMATORS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
KL_KINDS = (*KL_ESTIMATORS, *(f"{kind}+" for kind in KL_ESTIMATORS), "full")

MAX_LOG_RATIO = 20.0
ROUNDING = 1e-5  # of fp32 log-probs
MAX_LOW_VARIANCE_KL = 10.0


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Estimate of KL(policy || reference) at every token, elementwise (Schulman, "Approximating KL divergence", 2020).

    With x = logp - ref_logp: kl/k1 is x, abs |x|, mse/k2 x^2/2, low_var_kl/k3 exp(-x) + x - 1. A trailing `+` keeps
    the value and takes the gradient of k2, whose expectation is the gradient of the KL.
    """
    if kind == "full":
        raise ValueError("kl kind 'full' needs the distributions over the vocabulary, not log-probs; call full_kl")
    if kind not in KL_KINDS:
        raise ValueError(f"unknown kl kind {kind!r}; choose one of {', '.join(KL_KINDS)}")
    x = logprobs - ref_logprobs
    if kind.endswith("+"):
        squared = 0.5 * x.square()
        return squared - squared.detach() + _estimate(x.detach(), kind[:-1])
    return _estimate(x, kind)


def _estimate(x: Tensor, kind: str) -> Tensor:
    if kind in ("kl", "k1"):
        return x
    if kind == "abs":
        return magnitude(x)
    if kind in ("mse", "k2"):
        return 0.5 * x.square()
    y = (-x).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (torch.expm1(y) - y).clamp(-MAX_LOW_VARIANCE_KL, MAX_LOW_VARIANCE_KL)


def magnitude(log_ratio: Tensor) -> Tensor:
    """|x|, with the gradient 0 where only rounding tells the two log-probs apart: there its sign is noise, and a policy
    that has not moved yet would be pushed at random, differently for every cut into micro-batches."""
    return torch.where(log_ratio.detach().abs() < ROUNDING, log_ratio.detach(), log_ratio).abs()


class FixedKL:
    """A KL coefficient that stays what it is."""

    def __init__(self, value: float) -> None:
        self.value = value

    def update(self, current_kl: float, n_trajectories: int) -> None:
        """Nothing to adapt; the same call as AdaptiveKL."""

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The coefficient is configuration, not state: a resumed run uses the one it is configured with."""


class AdaptiveKL:
    """A KL coefficient that follows a target (arXiv 1909.08593, section 2.2)."""

    def __init__(self, value: float, target: float, horizon: float) -> None:
        if target <= 0 or horizon <= 0:
            raise ValueError(f"kl_ctrl.target_kl and kl_ctrl.horizon must be positive, got {target} and {horizon}")
        self.value = value
        self.target = target
        self.horizon = horizon

    def update(self, current_kl: float, n_trajectories: int) -> None:
        """value *= 1 + clip(kl / target - 1, -0.2, 0.2) * trajectories / horizon; a NaN or infinite KL, which would
        stay in the coefficient for good, moves nothing."""
        if not math.isfinite(current_kl):
            return
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        self.value *= 1.0 + error * n_trajectories / self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
