"""The torch engine: a model in one process, run over micro-batches and stepped once per mini-batch.

Objectives see only trained tokens, picked out before any arithmetic, and sum over `loss_weight`, which the driver
computed for the whole mini-batch: the gradient is the same for any micro-batch size, packed or padded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hone.algorithms import full_kl
from hone.batch import Batch
from hone.errors import UserError
from hone.models.forward import hidden_states, shared_hidden_states
from hone.models.heads import LogitHead, token_logprobs
from hone.models.load import value_head
from hone.models.precision import autocast
from hone.training.micro_batches import MicroBatching, Prompts
from hone.training.schedule import Schedule

MAX_NONFINITE_STEPS = 3


@dataclass
class TokenView:
    """A micro-batch's trained tokens, in order: columns [trained tokens] and the row each belongs to."""

    columns: dict[str, Tensor]
    segment_ids: Tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns


@dataclass
class Loss:
    """What an objective returns for a micro-batch: the loss summed with its weights, sums to log, means to log."""

    total: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)  # scalars that add up over micro-batches
    means: dict[str, Tensor] = field(default_factory=dict)  # [trained tokens], averaged over the mini-batch's tokens


class Objective(Protocol):
    @property
    def want(self) -> frozenset[str]:
        """Of "logprobs", "entropy", "full_kl", "values"."""
        ...

    def __call__(self, outputs: dict[str, Tensor], batch: TokenView) -> Loss: ...


@dataclass(frozen=True)
class ForwardOptions:
    """How the model is run.

    packed:      sequences laid end to end; shared_prompts: and equal prompts computed once (column prompt_length)
    temperature: the sampler's, so that log-probs are those of the distribution that was sampled
    chunk:       tokens whose logits exist at once; None: all of a micro-batch
    compiled:    run the log-prob computation through torch.compile
    """

    packed: bool = True
    shared_prompts: bool = False
    temperature: float = 1.0
    chunk: int | None = None
    compiled: bool = False
    compute_dtype: torch.dtype = torch.float32


class TorchEngine:
    """Holds one model and, when it trains, its optimiser.

    train:     micro-batches of an update; scoring: micro-batches of passes without gradient
    reference: an engine of the same model family in this process, for "full_kl", the exact KL to it
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        scoring: MicroBatching,
        options: ForwardOptions,
        train: MicroBatching | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        schedule: Schedule | None = None,
        grad_clip: float | None = 1.0,
        reference: TorchEngine | None = None,
    ) -> None:
        self.model = model.train(optimizer is not None)
        self.scoring = scoring
        self.train = train or scoring
        self.options = options
        self.optimizer = optimizer
        self.schedule = schedule or Schedule()
        self.grad_clip = grad_clip or float("inf")
        self.reference = reference
        self.peak_lrs = [g["lr"] for g in optimizer.param_groups] if optimizer else []
        self.nonfinite_in_a_row = 0

    @property
    def stochastic(self) -> bool:
        """Whether two passes in training mode differ: dropout, or noise in a router."""
        config = self.model.config.get_text_config()
        noise = (getattr(config, name, None) for name in ("attention_dropout", "router_jitter_noise"))
        return any(noise) or any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.model.modules())

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names as Hugging Face has them, with the whole tensors."""
        yield from self.model.state_dict().items()

    @torch.no_grad()
    def forward(self, batch: Batch, want: Iterable[str], *, mask: str = "response_mask") -> Batch:
        """A batch of the same sequences with one column per output: fp32 [tokens], 0 where `mask` is 0."""
        names = sorted(want)
        columns = {name: torch.zeros(batch.num_tokens) for name in names}
        self.model.eval()
        needed = batch.only(["input_ids", "prompt_length", mask])
        for rows, micro in self._micro_batches(needed, self.scoring):
            trained = _trained_tokens(micro, mask)
            outputs = self._outputs(micro, trained, frozenset(names))
            _fill(columns, outputs, _source_tokens(batch, rows)[trained])
        return Batch(batch.offsets, columns)

    def step(self, mini_batch: Batch, objective: Objective, *, training_step: int, mask: str = "response_mask") -> dict:
        """One optimiser step over the whole mini-batch; returns averaged metrics.

        A mini-batch without trainable tokens changes nothing. A non-finite gradient skips the step and is counted; the
        third in a row raises UserError.
        """
        return self.watched_step(mini_batch, objective, (), training_step=training_step, mask=mask)[1]

    def watched_step(
        self, mini_batch: Batch, objective: Objective, watch: Iterable[str], *, training_step: int, mask: str
    ) -> tuple[Batch, dict[str, float]]:
        """`step` that also returns the outputs named in `watch` as its own forward pass computed them: the columns
        that `forward` would have given before the step."""
        assert self.optimizer is not None, "this engine only scores"
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = defaultdict(float)
        means: dict[str, float] = defaultdict(float)
        count = int(mini_batch[mask].sum())
        finite = True
        watched = {name: torch.zeros(mini_batch.num_tokens) for name in watch}
        for rows, micro in self._micro_batches(mini_batch, self.train):
            trained = _trained_tokens(micro, mask)
            if len(trained) == 0:
                continue
            outputs = self._outputs(micro, trained, objective.want, frozenset(watched))
            loss = objective(outputs, self._view(micro, trained))
            finite = finite and bool(loss.total.isfinite())
            loss.total.backward()
            for name, value in loss.sums.items():
                sums[name] += float(value)
            for name, values in loss.means.items():
                means[name] += float(values.sum())
            _fill(watched, outputs, _source_tokens(mini_batch, rows)[trained])
        metrics = {**sums, **{name: value / max(count, 1) for name, value in means.items()}}
        metrics |= self._apply(training_step, trainable=count > 0, finite=finite)
        return Batch(mini_batch.offsets, watched), metrics

    def _micro_batches(self, batch: Batch, batching: MicroBatching) -> Iterator[tuple[list[int], Batch]]:
        """The rows of each micro-batch, and the micro-batch."""
        prompts = Prompts.of(batch) if self.options.shared_prompts else None
        for rows in batching.plan(batch.lengths.tolist(), prompts):
            yield rows, batch.select(rows)

    def _apply(self, training_step: int, *, trainable: bool, finite: bool) -> dict[str, float]:
        assert self.optimizer is not None
        factor = self.schedule.factor(training_step)
        for group, peak in zip(self.optimizer.param_groups, self.peak_lrs, strict=True):
            group["lr"] = peak * factor
        metrics = {"lr": self.peak_lrs[0] * factor, "grad_norm": 0.0, "nonfinite_steps": 0.0}
        if not trainable:
            return metrics
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip))
        if not (finite and math.isfinite(norm)):
            return {**metrics, **self._skip()}
        self.nonfinite_in_a_row = 0
        self.optimizer.step()
        return {**metrics, "grad_norm": norm}

    def _skip(self) -> dict[str, float]:
        bad = [name for name, p in self.model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= MAX_NONFINITE_STEPS:
            raise UserError(
                f"{self.nonfinite_in_a_row} optimiser steps in a row had a NaN or infinite loss or gradient (first in "
                f"{bad[0] if bad else 'the loss'}); lower the learning rate or look at the rewards and advantages"
            )
        return {"nonfinite_steps": 1.0}

    def _outputs(
        self, micro: Batch, trained: Tensor, want: frozenset[str], watch: frozenset[str] = frozenset()
    ) -> dict[str, Tensor]:
        """The outputs wanted or watched, at the trained tokens; what is only watched has no gradient. What speaks of
        token t comes from the hidden state of token t-1."""
        index = trained.to(self.device)
        options = self.options
        with self._autocast():
            hidden = self._states(micro, index)
            if "values" in want:
                return {"values": value_head(self.model)(hidden).squeeze(-1).float()}
            logprobs, entropy = token_logprobs(
                hidden,
                LogitHead.of(self.model),
                micro["input_ids"][trained].to(self.device),
                temperature=options.temperature,
                entropy="entropy" in want | watch,
                entropy_grad="entropy" in want,
                chunk=options.chunk,
                compiled=options.compiled,
            )
            outputs = {"logprobs": logprobs} if entropy is None else {"logprobs": logprobs, "entropy": entropy}
            if "full_kl" in want:
                outputs["full_kl"] = self._full_kl(hidden, micro, index)
        return outputs

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.device, next(self.model.parameters()).dtype, self.options.compute_dtype)

    def _states(self, micro: Batch, index: Tensor) -> Tensor:
        """[trained tokens, H] the hidden states that predict the trained tokens."""
        ids, lengths = micro["input_ids"].to(self.device), micro.lengths.tolist()
        if self.options.shared_prompts:
            prompts = Prompts.of(micro)
            return shared_hidden_states(self.model, ids, lengths, prompts.lengths, prompts.families, index - 1)
        return hidden_states(self.model, ids, lengths, packed=self.options.packed).index_select(0, index - 1)

    def _full_kl(self, hidden: Tensor, micro: Batch, index: Tensor) -> Tensor:
        """KL(this model || reference) over the whole vocabulary, [trained tokens]."""
        reference = self.reference
        assert reference is not None, "full_kl needs a reference"
        with torch.no_grad(), reference._autocast():
            ref_hidden = reference._states(micro, index)
        head, ref_head, dtype = LogitHead.of(self.model), LogitHead.of(reference.model), self.options.compute_dtype
        return full_kl(
            *(column.to(dtype) for column in (hidden, head.weight, ref_hidden, ref_head.weight)),
            bias=None if head.bias is None else head.bias.to(dtype),
            ref_bias=None if ref_head.bias is None else ref_head.bias.to(dtype),
            scale=head.multiplier,
            softcap=head.softcap,
            temperature=self.options.temperature,
        )

    def _view(self, micro: Batch, trained: Tensor) -> TokenView:
        columns = {k: v[trained].to(self.device) for k, v in micro.tokens.items()}
        return TokenView(columns, micro.segment_ids[trained].to(self.device))


def _fill(columns: dict[str, Tensor], outputs: dict[str, Tensor], places: Tensor) -> None:
    """Writes a micro-batch's outputs to their places in the columns of the whole batch."""
    for name, column in columns.items():
        column[places] = outputs[name].detach().float().cpu()


def _trained_tokens(micro: Batch, mask: str) -> Tensor:
    """Indices of the tokens under the mask. A sequence's first token has nothing before it that could predict it."""
    trained = micro[mask].nonzero().squeeze(1)
    if len(trained) and torch.isin(trained, micro.offsets[:-1][micro.lengths > 0]).any():
        raise ValueError(
            f"the first token of a sequence is marked in {mask!r}, but nothing stands before it to predict it"
        )
    return trained


def _source_tokens(batch: Batch, rows: list[int]) -> Tensor:
    """Where the tokens of `batch.select(rows)` stand in the batch."""
    return torch.cat([torch.arange(int(batch.offsets[r]), int(batch.offsets[r + 1])) for r in rows])
