"""Norms, rotary embeddings and gates with fewer passes over memory, in the place of a model's own while it is recorded.

On a CPU an update of a small model spends as long in elementwise operations as in matrix products, most of it in the
backward passes of these three: differentiated operation by operation, each goes over its tokens up to a dozen times.
What has a gradient is an operation of its own in the graph, which takes Python's lock; what has none is made of the
same single operations, without it. So both give the same bits: where a policy has not moved since its log-probs were
taken, its ratio is exactly 1. What stands in for the model's own code is compared with it first, on random numbers, and
left out where it differs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROTATE = "apply_rotary_pos_emb"  # the name of the function in transformers' models
Rotate = Callable[..., tuple[Tensor, Tensor]]

_LIBRARY = torch.library.Library("hone", "FRAGMENT")
_LIBRARY.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor")
_LIBRARY.define("swiglu(Tensor gate, Tensor up) -> Tensor")


def _normed(x: Tensor, weight: Tensor, eps: float, width: int) -> tuple[Tensor, Tensor]:
    """The norm of x [..., width], and what x was multiplied by [..., 1]."""
    scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().mul_(1 / width).add_(eps).rsqrt_()
    return (x * scale).mul_(weight), scale


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate).mul_(up)


class _RMSNorm(torch.autograd.Function):
    """w x / sqrt(mean(x^2) + eps) over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normed(x, weight, eps, len(weight))
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normal = x * scale
        weighted = grad * normal
        mean = (weighted @ weight).unsqueeze(-1).mul_(-1 / x.shape[-1])
        x_grad = (grad * weight).addcmul_(normal, mean).mul_(scale)
        return x_grad, weighted.reshape(-1, x.shape[-1]).sum(0), None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) * up (Shazeer 2020, arXiv:2002.05202); of the three tensors it keeps the two that are there anyway."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return _gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        gate_grad = grad * up
        torch.ops.aten.silu_backward.grad_input(gate_grad, gate, grad_input=gate_grad)
        return gate_grad, F.silu(gate).mul_(grad)


_LIBRARY.impl("rms_norm", lambda x, weight, eps: _RMSNorm.apply(x, weight, eps), "CompositeImplicitAutograd")
_LIBRARY.impl("swiglu", lambda gate, up: _SwiGLU.apply(gate, up), "CompositeImplicitAutograd")


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of q [1, heads, tokens, D] and k by cos and sin [1, tokens, D] (Su et al. 2021,
    arXiv:2104.09864), the halves of D being the coordinates of each pair; to roll them needs no gradient of slices."""
    half = sin.shape[-1] // 2
    signed = torch.cat((-sin[..., :half], sin[..., half:]), -1).unsqueeze(2)
    return _rotated(q, cos.unsqueeze(2), signed), _rotated(k, cos.unsqueeze(2), signed)


def _rotated(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    x = x.transpose(1, 2)  # as it lies in memory
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin).transpose(1, 2)


@contextmanager
def fused(model: nn.Module, *, differentiable: bool) -> Iterator[None]:
    """While this lasts, the model's norms, rotary embeddings and gates are those of this file, where they are the same.
    Other models of the same kind, in other threads, may get the rotary embeddings too."""
    with ExitStack() as stack:
        for module in model.modules():
            forward = _norm_of(module, differentiable) or _mlp_of(module, differentiable)
            if forward is not None:
                stack.enter_context(patch.object(module, "forward", forward))
        for code in {sys.modules[type(module).__module__] for module in model.modules()}:
            own = getattr(code, ROTATE, None)
            if own is not None and _rotates(own):
                stack.enter_context(patch.object(code, ROTATE, _rotation_of(own)))
        yield


Forward = Callable[[Tensor], Tensor]


def _norm_of(module: nn.Module, differentiable: bool) -> Forward | None:
    """A forward pass for that module, if it is an RMSNorm in fp32."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if "RMSNorm" not in type(module).__name__ or list(module._parameters) != ["weight"] or not isinstance(eps, float):
        return None
    if not isinstance(weight, Tensor) or weight.dim() != 1 or weight.dtype != torch.float32:
        return None
    width, small = len(weight), float(eps)

    def built(module: Any) -> Forward:
        if differentiable:
            return lambda x: torch.ops.hone.rms_norm(x, module.weight, small)
        return lambda x: _normed(x, module.weight, small, width)[0]

    return _if_same(module, built, width)


def _mlp_of(module: nn.Module, differentiable: bool) -> Forward | None:
    """A forward pass for that module, if it is a gated MLP in fp32."""
    gate, up, down = (getattr(module, f"{name}_proj", None) for name in ("gate", "up", "down"))
    if not all(isinstance(part, nn.Linear) and part.weight.dtype == torch.float32 for part in (gate, up, down)):
        return None
    assert gate is not None
    gated = torch.ops.hone.swiglu if differentiable else _gated

    def built(module: Any) -> Forward:
        return lambda x: module.down_proj(gated(module.gate_proj(x), module.up_proj(x)))

    return _if_same(module, built, gate.in_features)


def _if_same(module: nn.Module, built: Callable[[Any], Forward], width: int) -> Forward | None:
    """What is built for that module, if it gives the same with other weights: its own may hide the difference, being 0
    or small. Rows of several sizes show the eps of a norm and both ends of a gate."""
    x = _random(1, 3, width) * torch.tensor([1e-3, 1.0, 30.0])[:, None]
    try:
        twin = deepcopy(module).requires_grad_(False)
        for parameter in twin.parameters():
            parameter.copy_(_random(*parameter.shape))
        same = _same(lambda: twin.forward(x), lambda: built(twin)(x))
    except Exception:  # what cannot be copied is not what we know
        return None
    return built(module) if same else None


def _rotation_of(own: Rotate) -> Rotate:
    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return own(q, k, cos, sin, *rest, **options) if rest or options else rotate(q, k, cos, sin)

    return apply


def _rotates(own: Rotate) -> bool:
    """Whether that is `rotate`; not if it can also leave a part of D as it is, which shows only when it is called."""
    q, k, cos, sin = _random(1, 2, 3, 8), _random(1, 1, 3, 8), _random(1, 3, 8), _random(1, 3, 8)
    same = _same(lambda: torch.cat(own(q, k, cos, sin), 1), lambda: torch.cat(rotate(q, k, cos, sin), 1))
    try:
        own(q, k, cos[..., :4], sin[..., :4])
    except Exception:
        return same
    return False


@torch.no_grad()
def _same(theirs: Callable[[], Tensor], ours: Callable[[], Tensor]) -> bool:
    try:
        return torch.allclose(theirs(), ours(), rtol=1e-5, atol=1e-6)
    except Exception:  # their code wants something else than we know of
        return False


def _random(*shape: int) -> Tensor:
    """The global random state is left as it is."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))
