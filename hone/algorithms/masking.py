"""Masked reductions. Everything selects before it computes, so a NaN or infinity under the mask reaches neither a
result nor a gradient."""

import torch
from torch import Tensor

WHITEN_EPS = 1e-8


def select(x: Tensor, mask: Tensor) -> Tensor:
    """`x` where the mask is set, exactly 0 elsewhere (a product with the mask would keep NaN and infinities)."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the masked positions as a float64 scalar; 0 when there are none."""
    return select(x, mask).sum(dtype=torch.float64) / torch.count_nonzero(mask).clamp(min=1)


def masked_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the masked positions (unbiased variance), 0 elsewhere.

    The sums are float64: in float32 the mean of equal values is off by a rounding error that 1 / sqrt(1e-8) would
    turn into an advantage of 1e-4.
    """
    whitened, count = select(x, mask), torch.count_nonzero(mask)
    mean = whitened.sum(dtype=torch.float64) / count.clamp(min=1)
    whitened.sub_(mean.to(x.dtype)).masked_fill_(~mask, 0.0)  # in place: these may be 10^8 numbers
    row_norms = torch.linalg.vector_norm(
        whitened, dim=-1
    )  # rows in x's type, their sum in float64: fast and exact enough
    variance = row_norms.double().square().sum() / (count - 1).clamp(min=1)
    return whitened.mul_(torch.rsqrt(variance + WHITEN_EPS).to(x.dtype))
