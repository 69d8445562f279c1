"""What every advantage estimator receives, and the registry that finds an estimator by name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .masking import select


@dataclass
class AdvantageInputs:
    """Padded trajectories of one training step. Positions under the mask neither discount, bootstrap nor cut."""

    token_rewards: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool, trainable tokens
    group_ids: Tensor  # [B] long, equal for trajectories of the same prompt
    scored: Tensor | None = None  # [B] bool, False where the reward is missing; None: all scored
    values: Tensor | None = None  # [B, T], for gae
    greedy_rewards: Tensor | None = None  # [B], reward of a greedy rollout of the prompt, for remax
    gamma: float = 1.0
    lam: float = 1.0
    norm_by_std: bool = True

    def trainable(self) -> Tensor:
        """Trainable tokens of scored trajectories, bool [B, T]."""
        return self.mask if self.scored is None else self.mask & self.scored[:, None]

    def counted(self) -> Tensor:
        """Trajectories that count in their group: scored and with a trainable token, bool [B]."""
        return self.trainable().any(dim=1)

    def rewards(self) -> Tensor:
        """Reward of each trajectory, the sum over its trainable tokens, float64 [B]; 0 where it does not count."""
        return select(self.token_rewards, self.trainable()).sum(dim=1, dtype=torch.float64)


Estimator = Callable[[AdvantageInputs], tuple[Tensor, Tensor]]
ADVANTAGE_ESTIMATORS: dict[str, Estimator] = {}


def register_estimator(name: str) -> Callable[[Estimator], Estimator]:
    def register(estimator: Estimator) -> Estimator:
        ADVANTAGE_ESTIMATORS[name] = estimator
        return estimator

    return register


def get_estimator(name: str) -> Estimator:
    """The estimator registered under `name`."""
    if name not in ADVANTAGE_ESTIMATORS:
        raise ValueError(f"unknown adv_estimator {name!r}; choose one of {', '.join(sorted(ADVANTAGE_ESTIMATORS))}")
    return ADVANTAGE_ESTIMATORS[name]


def place_rewards(scores: Tensor, mask: Tensor) -> Tensor:
    """Put each trajectory's score [B] on its last trainable token, fp32 [B, T]; nowhere when it has none."""
    placed = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    if mask.numel() == 0:
        return placed
    rows = mask.any(dim=1).nonzero().squeeze(1)
    last = mask.shape[1] - 1 - mask[rows].flip(1).int().argmax(dim=1)
    placed[rows, last] = scores[rows].float()
    return placed
