"""The exact KL over the whole vocabulary, in chunks of tokens, so that no [tokens, vocabulary] tensor ever exists:
neither between forward and backward nor inside either."""

from typing import Any

import torch
from torch import Tensor


def full_kl(
    hidden: Tensor,
    head: Tensor,
    ref_hidden: Tensor,
    ref_head: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 256,
) -> Tensor:
    """sum_v p(v) (log p(v) - log q(v)) of every token, [tokens], differentiable in `hidden` and `head`.

    p = softmax(hidden head^T / temperature) with `hidden` [tokens, H] and `head` [V, H]; q likewise from the
    reference, which gets no gradient. `chunk` tokens are expanded to the vocabulary at a time. Sums are fp32 at least.
    """
    return _FullKL.apply(hidden, head, ref_hidden, ref_head, temperature, chunk)


class _FullKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, ref_hidden: Tensor, ref_head: Tensor, temperature: float, chunk: int
    ) -> Tensor:
        ctx.save_for_backward(hidden, head, ref_hidden, ref_head)
        ctx.temperature, ctx.chunk = temperature, chunk
        kl = hidden.new_empty(len(hidden), dtype=_sum_dtype(hidden))
        for rows in _chunks(len(hidden), chunk):
            log_p = _log_softmax(hidden[rows], head, temperature)
            log_q = _log_softmax(ref_hidden[rows], ref_head, temperature)
            kl[rows] = _kl(log_p, log_p - log_q)
        return kl

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, ref_hidden, ref_head = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        grad_head = torch.zeros_like(head, dtype=_sum_dtype(head)) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(hidden), ctx.chunk):
            log_p = _log_softmax(hidden[rows], head, ctx.temperature)
            log_q = _log_softmax(ref_hidden[rows], ref_head, ctx.temperature)
            grad_logits = _grad_logits(log_p, log_q, grad_outputs[0][rows] / ctx.temperature)
            if grad_hidden is not None:
                grad_hidden[rows] = grad_logits.to(head.dtype) @ head
            if grad_head is not None:
                grad_head.addmm_(grad_logits.t(), hidden[rows].to(grad_logits.dtype))
        return grad_hidden, grad_head if grad_head is None else grad_head.to(head.dtype), None, None, None, None


def _grad_logits(log_p: Tensor, log_q: Tensor, grad: Tensor) -> Tensor:
    """grad * d KL / d logits = grad * p (log p - log q - KL), [chunk, V]; `grad` [chunk]."""
    log_ratio = log_p - log_q
    kl = _kl(log_p, log_ratio)
    return log_ratio.sub_(kl[:, None]).mul_(log_p.exp()).mul_(grad[:, None])


def _kl(log_p: Tensor, log_ratio: Tensor) -> Tensor:
    return (log_p.exp() * log_ratio).sum(dim=-1)


def _log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ head.t()).to(_sum_dtype(hidden)).div_(temperature)
    return torch.log_softmax(logits, dim=-1)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _chunks(tokens: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, tokens, size)]
