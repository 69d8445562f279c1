"""Log-probability of the chosen token and entropy of the whole distribution, with their gradients in closed form.

With p = softmax(z), c the chosen token and H the entropy: d log p_c / dz = 1_c - p and dH / dz = -p (log p + H). Single
differentiated operations would pass over [tokens, vocabulary] twice as often and keep more of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IN_CACHE = 2**18  # numbers that several operations in a row find in a core's cache
ROWS_OF_A_THREAD = 16  # at least, where several threads divide a piece: they meet after every operation


@dataclass(frozen=True)
class EntropyWork:
    """How the entropy is computed.

    differentiable: it has a gradient; else it is only looked at
    at_once:        tokens whose probabilities exist at once; None: all. On a CPU never more than its cache holds
    recompute:      the backward pass computes the probabilities again, and keeps the log-probs alone
    """

    differentiable: bool = True
    at_once: int | None = None
    recompute: bool = False


def chosen_and_entropy(logits: Tensor, labels: Tensor, work: EntropyWork | None) -> tuple[Tensor, Tensor | None]:
    """fp32 logits [tokens, V], labels [tokens] -> log p(label) and, with `work`, the entropy, both [tokens]."""
    chosen, entropy = _ChosenAndEntropy.apply(logits, labels, work)
    return chosen, None if work is None else entropy


class _ChosenAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, work: EntropyWork | None) -> tuple[Tensor, Tensor]:
        differentiable = work is not None and work.differentiable
        keep = work is not None and differentiable and not work.recompute and ctx.needs_input_grad[0]
        logprobs, probs = torch.empty_like(logits), torch.empty_like(logits) if keep else None
        entropy = logits.new_empty(0 if work is None else len(logits))
        for rows in _pieces(logits, work):
            piece = torch.log_softmax(logits[rows], 1, out=logprobs[rows])
            if work is not None:
                p = torch.exp(piece, out=None if probs is None else probs[rows])
                torch.sum(p.mul_(piece) if probs is None else p * piece, 1, out=entropy[rows])
        entropy.neg_()
        if not differentiable:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(labels, logprobs, entropy if differentiable else None, probs)
        ctx.work = work
        ctx.set_materialize_grads(False)  # what nobody asks the gradient of may be infinite
        return logprobs.gather(1, labels[:, None]).squeeze(1), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, entropy_grad: Tensor | None) -> tuple[Tensor, None, None]:
        labels, logprobs, entropy, probs = ctx.saved_tensors
        grad = logprobs.new_zeros(len(labels)) if grad is None else grad
        logits_grad = torch.empty_like(logprobs)
        for rows in _pieces(logprobs, ctx.work):
            g, piece = grad[rows, None], logits_grad[rows]
            p = torch.exp(logprobs[rows], out=piece) if probs is None else probs[rows]
            if entropy_grad is None:
                torch.mul(p, -g, out=piece)
            else:
                factor = (logprobs[rows] + entropy[rows, None]).mul_(-entropy_grad[rows, None]).sub_(g)
                torch.mul(p, factor, out=piece)
            piece.scatter_add_(1, labels[rows, None], g)
        return logits_grad, None, None


def _pieces(logprobs: Tensor, work: EntropyWork | None) -> Iterator[slice]:
    """The rows that are gone through together."""
    size = work.at_once if work is not None and work.at_once else max(len(logprobs), 1)
    if logprobs.device.type == "cpu":
        threads = torch.get_num_threads()
        least = 1 if threads == 1 else ROWS_OF_A_THREAD * threads
        size = min(size, max(least, IN_CACHE * threads // logprobs.shape[1]))
    return (slice(begin, begin + size) for begin in range(0, len(logprobs), size))
