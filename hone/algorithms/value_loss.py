"""The clipped value loss of PPO, one number per token."""

import torch
from torch import Tensor

from .masking import select


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange: float
) -> tuple[Tensor, Tensor]:
    """0.5 max((v - R)^2, (clip(v, v_old - e, v_old + e) - R)^2) and where the clipped term is the larger one.

    All tensors have one shape, e is `cliprange`, and both results are 0 (False) under `mask`. The formula is of the
    first PPO implementation (Implementation Matters in Deep Policy Gradients, arXiv 2005.12729).
    """
    values, old_values, returns = (select(column, mask) for column in (values, old_values, returns))
    bounded = values.clamp(old_values - cliprange, old_values + cliprange)  # values inside stay bit-equal
    unclipped_error = (values - returns).square()
    clipped_error = (bounded - returns).square()
    return 0.5 * torch.max(unclipped_error, clipped_error), clipped_error.detach() > unclipped_error.detach()
