"""Masked reductions. Everything selects before it computes, so a NaN or infinity under the mask reaches neither a
result nor a gradient."""

import torch
from torch import Tensor

WHITEN_EPS = 1e-8
BLOCK = 1 << 20  # numbers of a block of rows


def select(x: Tensor, mask: Tensor) -> Tensor:
    """`x` where the mask is set, exactly 0 elsewhere (a product with the mask would keep NaN and infinities)."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the masked positions as a float64 scalar; 0 when there are none."""
    return select(x, mask).sum(dtype=torch.float64) / torch.count_nonzero(mask).clamp(min=1)


def masked_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the masked positions (unbiased variance), 0 elsewhere."""
    return masked_whiten_(x.clone(), mask)


def masked_whiten_(x: Tensor, mask: Tensor) -> Tensor:
    """`masked_whiten` in place: these may be 10^8 numbers, and the memory of a copy costs more than the arithmetic.

    The sums are float64: in float32 the mean of equal values is off by a rounding error that 1 / sqrt(1e-8) would
    turn into an advantage of 1e-4. Blocks of rows stay in the cache between the passes over them.
    """
    if x.numel() == 0:
        return x
    rows = max(1, BLOCK * len(x) // x.numel())
    blocks = list(zip(x.split(rows), mask.split(rows), strict=True))
    zero, count = torch.zeros((), dtype=x.dtype, device=x.device), torch.count_nonzero(mask)
    total = squares = torch.zeros((), dtype=torch.float64, device=x.device)
    for block, chosen in blocks:
        total = total + torch.where(chosen, block, zero, out=block).sum(dtype=torch.float64)
    mean = (total / count.clamp(min=1)).to(x.dtype)
    for block, chosen in blocks:
        torch.where(chosen, block.sub_(mean), zero, out=block)
        squares = squares + torch.linalg.vector_norm(block, dim=-1).double().square().sum()  # rows in x's type
    return x.mul_(torch.rsqrt(squares / (count - 1).clamp(min=1) + WHITEN_EPS).to(x.dtype))
