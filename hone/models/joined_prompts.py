"""Attention of responses to a shared prompt and to themselves, one after the other, joined by their normalisers.

All responses to a prompt are so many queries to one set of keys, which is never copied, and each response's attention
to itself is plainly causal: nothing needs a mask. With l the log-sum-exp of its scores, a part counts with
exp(l - l'), l' = log(sum of exp l) (Milakov and Gimelshein 2018, arXiv:1805.02867). Given the joined output and l',
flash attention's backward pass over a part gives its share of the gradients (Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.models.rectangles import Rectangles, similar
from hone.models.scripted import plain

Kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KernelBackward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
TOLERANCE = 1e-4
TRIED = (
    "2.13"  # version of torch; old kernels take as many key heads as query heads for granted, and read beyond the keys
)


class JoinedPrompts:
    """segments: tokens of the prompts, then of the responses, as they lie end to end
    own: [responses] which prompt each continues, ascending
    """

    def __init__(self, segments: Sequence[int], own: Sequence[int]) -> None:
        count = len(segments) - len(own)
        alone = similar(segments, range(count)) + similar(segments, range(count, len(segments)))
        self.alone = Rectangles(segments, alone)  # every segment by itself
        self.families: list[tuple[slice, slice]] = []  # tokens of each prompt, and of all its responses
        ends = torch.tensor([0, *segments]).cumsum(0).tolist()
        responses: dict[int, tuple[int, int]] = {}
        for row, prompt in enumerate(own, start=count):
            responses[prompt] = (responses.get(prompt, (ends[row],))[0], ends[row + 1])
        for prompt, (begin, end) in responses.items():
            if segments[prompt] and end > begin:
                self.families.append((slice(ends[prompt], ends[prompt + 1]), slice(begin, end)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q [tokens, heads, D], k and v [tokens, kv_heads, D] -> [tokens, heads, D]."""
        return _Joined.apply(q, k, v, self, scale)


def can_join(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch has the kernels for these, and nobody counts or fakes tensors."""
    cpu = q.device.type == "cpu" and q.dtype == torch.float32 and q.shape[2] == v.shape[2]
    return cpu and plain() and not torch.is_autocast_enabled("cpu") and _kernels_work()


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: JoinedPrompts, scale: float) -> Tensor:
        outputs, normalisers = [], []
        for shaped in zip(*(layout.alone.pad(x) for x in (q, k, v)), strict=True):
            output, normaliser = Kernel(*shaped, 0.0, True, scale=scale)
            outputs.append(output)
            normalisers.append(normaliser[..., None])
        out, lse = layout.alone.unpad(outputs), layout.alone.unpad(normalisers)
        for prompt, responses in layout.families:
            tensors = (_one_row(q[responses]), _one_row(k[prompt]), _one_row(v[prompt]))
            output, normaliser = Kernel(*tensors, 0.0, False, scale=scale)
            _join(out[responses], lse[responses], output[0].transpose(0, 1), normaliser[0].T[..., None])
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, lse = ctx.saved_tensors
        layout, scale = ctx.layout, ctx.scale
        shaped = [layout.alone.pad_with_zeros(grad), *(layout.alone.pad(x) for x in (q, k, v, out, lse))]
        alone = [_backward(*tensors, causal=True, scale=scale) for tensors in zip(*shaped, strict=True)]
        q_grad, k_grad, v_grad = (layout.alone.unpad(pieces) for pieces in zip(*alone, strict=True))
        for prompt, responses in layout.families:
            sides = grad[responses], q[responses], k[prompt], v[prompt], out[responses], lse[responses]
            shares = _backward(*(_one_row(x) for x in sides), causal=False, scale=scale)
            for whole, share in zip((q_grad[responses], k_grad[prompt], v_grad[prompt]), shares, strict=True):
                whole.add_(share[0].transpose(0, 1))
        return q_grad, k_grad, v_grad, None, None


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v: one part's share of them where `out` and `lse` [rows, heads, Q, 1] are the joined ones."""
    return KernelBackward(grad, q, k, v, out, lse[..., 0].contiguous(), 0.0, causal, scale=scale)


def _one_row(tokens: Tensor) -> Tensor:
    """[tokens, heads, D] -> [1, heads, tokens, D]; the kernels take for granted that D lies together."""
    return (tokens if tokens.stride(-1) == 1 else tokens.contiguous()).transpose(0, 1)[None]


def _join(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Changes out [tokens, heads, D] and lse [tokens, heads, 1] to those of both parts together."""
    out.lerp_(other, torch.sigmoid(other_lse - lse))
    torch.logaddexp(lse, other_lse, out=lse)


@cache
def _kernels_work() -> bool:
    """Whether this version of torch has the kernels and they mean what is thought here. In a thread of its own: the
    caller's may be computing layers again in a backward pass, whose hooks see all that is saved."""
    if torch.__version__ < TRIED:
        return False
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_probe).result()


def _probe() -> bool:
    """One prompt of 3 tokens and its responses of 2 and 1, with 2 query heads to a key head."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(6, heads, 4, generator=draw) for heads in (4, 2, 2, 4))
    seen = torch.tensor([[r >= c and (c < 3 or (r < 5) == (c < 5)) for c in range(6)] for r in range(6)])
    ours, theirs = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    with torch.enable_grad():
        try:
            found = _Joined.apply(*ours, JoinedPrompts([3, 2, 1], [0, 0]), 0.5)
            gradients = torch.autograd.grad(found, ours, grad)
        except Exception:
            return False
        keys, values = (x.repeat_interleave(2, 1).transpose(0, 1) for x in theirs[1:])
        scores = (theirs[0].transpose(0, 1) @ keys.transpose(1, 2) * 0.5).masked_fill(~seen, float("-inf"))
        expected = (scores.softmax(-1) @ values).transpose(0, 1)
        pairs = zip((found, *gradients), (expected, *torch.autograd.grad(expected, theirs, grad)), strict=True)
    return all(torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE) for a, b in pairs)
