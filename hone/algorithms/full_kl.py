"""The exact KL over the whole vocabulary, in chunks of tokens, so that no [tokens, vocabulary] tensor ever exists:
neither between forward and backward nor inside either."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def full_kl(
    hidden: Tensor,
    head: Tensor,
    ref_hidden: Tensor,
    ref_head: Tensor,
    *,
    bias: Tensor | None = None,
    ref_bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    temperature: float = 1.0,
    chunk: int = 256,
) -> Tensor:
    """sum_v p(v) (log p(v) - log q(v)) of every token, [tokens], differentiable in `hidden`, `head` and `bias`.

    p = softmax(cap(scale (hidden head^T + bias)) / temperature) with `hidden` [tokens, H], `head` [V, H], `bias` [V]
    and cap(x) = softcap tanh(x / softcap), or x without one; q likewise from the reference, which gets no gradient.
    `chunk` tokens are expanded to the vocabulary at a time. Sums are fp32 at least.
    """
    squash = _Squash(scale, softcap, temperature)
    return _FullKL.apply(hidden, head, bias, ref_hidden, ref_head, ref_bias, squash, chunk)


@dataclass(frozen=True)
class _Squash:
    """From matrix product to the logits that are sampled from."""

    scale: float
    softcap: float | None
    temperature: float

    def __call__(self, products: Tensor) -> Tensor:
        scaled = products * self.scale
        capped = scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)
        return capped / self.temperature

    def slope(self, products: Tensor) -> Tensor | float:
        """d logits / d products."""
        if self.softcap is None:
            return self.scale / self.temperature
        return (1 - torch.tanh(products * (self.scale / self.softcap)).square()) * (self.scale / self.temperature)


class _FullKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        ref_hidden: Tensor,
        ref_head: Tensor,
        ref_bias: Tensor | None,
        squash: _Squash,
        chunk: int,
    ) -> Tensor:
        ctx.save_for_backward(hidden, head, bias, ref_hidden, ref_head, ref_bias)
        ctx.squash, ctx.chunk = squash, chunk
        kl = hidden.new_empty(len(hidden), dtype=_sum_dtype(hidden))
        for rows in _chunks(len(hidden), chunk):
            log_p = squash(_products(hidden[rows], head, bias)).log_softmax(-1)
            log_q = squash(_products(ref_hidden[rows], ref_head, ref_bias)).log_softmax(-1)
            kl[rows] = _kl(log_p, log_p - log_q)
        return kl

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, bias, ref_hidden, ref_head, ref_bias = ctx.saved_tensors
        needs_hidden, needs_head, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_head = torch.zeros_like(head, dtype=_sum_dtype(head)) if needs_head else None
        grad_bias = torch.zeros_like(bias, dtype=_sum_dtype(head)) if needs_bias else None
        for rows in _chunks(len(hidden), ctx.chunk):
            products = _products(hidden[rows], head, bias)
            log_p = ctx.squash(products).log_softmax(-1)
            log_q = ctx.squash(_products(ref_hidden[rows], ref_head, ref_bias)).log_softmax(-1)
            grad = _grad_logits(log_p, log_q, grad_outputs[0][rows]).mul_(ctx.squash.slope(products))
            if grad_hidden is not None:
                grad_hidden[rows] = grad.to(head.dtype) @ head
            if grad_head is not None:
                grad_head.addmm_(grad.t(), hidden[rows].to(grad.dtype))
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return _like(grad_hidden, hidden), _like(grad_head, head), _like(grad_bias, bias), None, None, None, None, None


def _products(hidden: Tensor, head: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden, head, bias).to(_sum_dtype(hidden))


def _grad_logits(log_p: Tensor, log_q: Tensor, grad: Tensor) -> Tensor:
    """grad * d KL / d logits = grad * p (log p - log q - KL), [chunk, V]; `grad` [chunk]."""
    log_ratio = log_p - log_q
    kl = _kl(log_p, log_ratio)
    return log_ratio.sub_(kl[:, None]).mul_(log_p.exp()).mul_(grad[:, None])


def _kl(log_p: Tensor, log_ratio: Tensor) -> Tensor:
    return (log_p.exp() * log_ratio).sum(dim=-1)


def _like(grad: Tensor | None, leaf: Tensor | None) -> Tensor | None:
    return grad if grad is None or leaf is None else grad.to(leaf.dtype)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _chunks(tokens: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, tokens, size)]
