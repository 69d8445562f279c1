"""What every policy loss receives and returns, and the registry that finds a loss by name.

A loss gives one number per token and never a mean: `loss_weights` says how the numbers of a mini-batch add up.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .masking import select

MAX_LOG_RATIO = 20.0  # e^20 is 5e8: far outside every clip range, far inside fp32


@dataclass
class PolicyLossInputs:
    """Tokens of whole trajectories, in any shape that all fields share: packed [tokens] or [B, T]."""

    logprobs: Tensor  # log p(token | before) of the policy being trained, carries the gradient
    old_logprobs: Tensor  # of the policy at the start of the step
    advantages: Tensor
    mask: Tensor  # bool, trainable tokens
    segment_ids: Tensor  # long, the trajectory a token belongs to, 0 .. S-1
    selection: Tensor | None = None  # bool, tokens picked by clip_cov_selection or kl_cov_selection


@dataclass(frozen=True)
class PolicyLossParams:
    """Constants of the losses; each loss reads its own."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0  # dual clip; truncation of the ratio in dppo
    tau_pos: float = 1.0  # sapo
    tau_neg: float = 1.05  # sapo
    clip_cov_ratio: float = 2e-4
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 2e-4
    ppo_kl_coef: float = 1.0  # kl_cov: weight of the penalty; dro: the temperature tau

    def __post_init__(self) -> None:
        if self.clip_ratio_c <= 1.0:
            raise ValueError(f"clip_ratio_c must be greater than 1, got {self.clip_ratio_c}")


Metrics = dict[str, Tensor]
PolicyLoss = Callable[[PolicyLossInputs, PolicyLossParams], tuple[Tensor, Metrics]]
POLICY_LOSSES: dict[str, PolicyLoss] = {}


def register_policy_loss(name: str) -> Callable[[PolicyLoss], PolicyLoss]:
    def register(loss: PolicyLoss) -> PolicyLoss:
        POLICY_LOSSES[name] = loss
        return loss

    return register


def get_policy_loss(name: str) -> PolicyLoss:
    """The loss registered under `name`."""
    if name not in POLICY_LOSSES:
        raise ValueError(f"unknown policy_loss.loss_mode {name!r}; choose one of {', '.join(sorted(POLICY_LOSSES))}")
    return POLICY_LOSSES[name]


@dataclass
class Tokens:
    """The inputs with everything under the mask replaced by 0."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor

    @classmethod
    def of(cls, x: PolicyLossInputs) -> "Tokens":
        logprobs, old_logprobs, advantages = (select(c, x.mask) for c in (x.logprobs, x.old_logprobs, x.advantages))
        return cls(logprobs, old_logprobs, advantages, x.mask)

    @property
    def log_ratio(self) -> Tensor:
        return self.logprobs - self.old_logprobs

    @property
    def clamped_log_ratio(self) -> Tensor:
        return self.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def result(
        self, loss: Tensor, *, clipped: Tensor | None = None, lower: Tensor | None = None, kl: Tensor | None = None
    ) -> tuple[Tensor, Metrics]:
        """The loss and its metrics, 0 under the mask; `clipped` and `lower` are bool, `kl` defaults to -d."""
        metrics = {
            "pg_clipfrac": self._metric(clipped),
            "pg_clipfrac_lower": self._metric(lower),
            "ppo_kl": self._metric(-self.clamped_log_ratio if kl is None else kl),
        }
        return select(loss, self.mask), metrics

    def _metric(self, values: Tensor | None) -> Tensor:
        if values is None:
            return torch.zeros_like(self.old_logprobs, dtype=torch.float32)
        return select(values.detach().float(), self.mask)
