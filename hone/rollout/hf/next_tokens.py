"""From the tokens of rows to their next ones: the model's logits, and what is drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hone.models.attention import Layout, layout_attention
from hone.models.forward import run_layout
from hone.models.heads import LogitHead
from hone.models.precision import autocast
from hone.rollout.hf.request import Request
from hone.rollout.hf.sampling import RowSampling, penalise_repetition, sample, uniforms


@dataclass(frozen=True)
class Drawn:
    """The next token of each of some rows, and its log-prob."""

    tokens: list[int]
    logprobs: list[float]

    @classmethod
    def joined(cls, parts: Sequence[Drawn]) -> Drawn:
        return cls([t for part in parts for t in part.tokens], [p for part in parts for p in part.logprobs])

    @property
    def finite(self) -> bool:
        """One NaN among a row's logits is in all of its log-probs."""
        return math.isfinite(sum(self.logprobs))


@torch.no_grad()
def next_logits(
    model: PreTrainedModel,
    head: LogitHead,
    input_ids: Tensor,
    layout: Layout,
    pick: Tensor | None,
    compute_dtype: torch.dtype,
) -> Tensor:
    """Logits [rows, V] of the tokens that follow those at `pick` of the layout; None: at all of them."""
    with layout_attention(model), autocast(input_ids.device, model.dtype, compute_dtype):
        hidden = run_layout(model, input_ids, layout, None if pick is None else pick.to(input_ids.device))
        return head.logits(hidden)


@torch.no_grad()
def draw(rows: Sequence[Request], logits: Tensor, sampling: RowSampling) -> Drawn:
    """logits [rows, V] of the rows' next tokens, which are drawn with their sampling parameters."""
    if sampling.penalises:
        seen = [[*r.prompt_ids, *r.token_ids] for r in rows]
        logits = penalise_repetition(logits, seen, [r.sampling.repetition_penalty for r in rows])
    positions = np.array([len(r.token_ids) for r in rows], dtype=np.uint64)
    uniform = torch.from_numpy(uniforms(sampling.seeds, positions)).to(logits.device)
    tokens, logprobs = sample(logits, sampling, uniform)
    return Drawn(tokens.tolist(), logprobs.tolist())
