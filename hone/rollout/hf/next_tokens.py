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
from hone.rollout.requests import no_distribution


@dataclass(frozen=True)
class Drawn:
    """The next token [rows] of each of some rows, its log-prob [rows], and the version of the weights."""

    tokens: Tensor
    logprobs: Tensor
    version: int


class NextTokens:
    """A model that gives rows their next tokens."""

    def __init__(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        self.model = model
        self.head = LogitHead.of(model)
        self.compute_dtype = compute_dtype

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def logits(self, input_ids: Tensor, layout: Layout, pick: Tensor | None) -> Tensor:
        """Logits [rows, V] of the tokens that follow those at `pick` of the layout; None: at all of them."""
        if self.model.training:
            self.model.eval()
        with layout_attention(self.model), autocast(self.device, self.model.dtype, self.compute_dtype):
            hidden = run_layout(self.model, input_ids, layout, None if pick is None else pick.to(self.device))
            return self.head.logits(hidden)

    @torch.no_grad()
    def draw(
        self, rows: Sequence[Request], logits: Tensor, sampling: RowSampling, version: int, ahead: int = 0
    ) -> Drawn:
        """From logits [rows, V] of weights of this version. Rows of whom nothing is penalised may be `ahead`: have so
        many tokens more than they were given."""
        if sampling.penalises:
            seen = [[*r.prompt_ids, *r.token_ids] for r in rows]
            logits = penalise_repetition(logits, seen, [r.sampling.repetition_penalty for r in rows])
        positions = np.array([len(r.token_ids) + ahead for r in rows], dtype=np.uint64)
        uniform = torch.from_numpy(uniforms(sampling.seeds, positions)).to(logits.device)
        drawn = Drawn(*sample(logits, sampling, uniform), version)
        if not math.isfinite(float(drawn.logprobs.sum())):  # one NaN among a row's logits is in all of its log-probs
            raise no_distribution(version, str(self.compute_dtype).removeprefix("torch."))
        return drawn


def append(rows: Sequence[Request], drawn: Sequence[Drawn]) -> None:
    """Gives the rows what was drawn for them, in this order, all by weights of one version. Only the last token of a
    row may end it."""
    tokens, logprobs = (
        torch.stack([getattr(each, name) for each in drawn], 1).tolist() for name in ("tokens", "logprobs")
    )
    for row, of_row, its_logprobs in zip(rows, tokens, logprobs, strict=True):
        row.extend(of_row, its_logprobs, drawn[0].version)
