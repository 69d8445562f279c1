"""The tokens that clip_cov and kl_cov pick, among those of a whole mini-batch: no micro-batch could pick them alone."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms import PolicyLossParams, clip_cov_selection, kl_cov_selection
from hone.batch import Batch
from hone.trainers.updates import Selector


def token_selector(loss_mode: str, params: PolicyLossParams) -> Selector | None:
    """Of the policy before the update; None for losses that treat all tokens alike."""

    def clip_cov(batch: Batch, generator: torch.Generator) -> Tensor:
        return clip_cov_selection(*_columns(batch), params, generator)

    def kl_cov(batch: Batch, generator: torch.Generator) -> Tensor:
        return kl_cov_selection(*_columns(batch), params)

    return {"clip_cov": clip_cov, "kl_cov": kl_cov}.get(loss_mode)


def _columns(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch["old_logprobs"], batch["advantages"], batch["loss_mask"]
