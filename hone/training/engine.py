"""The torch engine: a model, whole or sharded over ranks, run over micro-batches and stepped once per mini-batch.

Objectives see only trained tokens, picked out before any arithmetic, and sum over `loss_weight`, which the driver
computed for the whole mini-batch: the gradient is the same for any micro-batch size, packed or padded.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hone.batch import Batch
from hone.errors import UserError
from hone.models.heads import LogitHead
from hone.models.lora import Adapter
from hone.models.randomness import is_stochastic
from hone.models.rope import moving_rope
from hone.models.threads import AHEAD, run_side_by_side, side_by_side
from hone.training.micro_batches import MicroBatch, MicroBatching, Prompts
from hone.training.objective import Loss, Objective, TokenView
from hone.training.offload import Offload, OffloadOptions
from hone.training.outputs import ForwardOptions, OutputModule, Reference
from hone.training.ranks import Ranks
from hone.training.schedule import Schedule
from hone.training.sharding import Sharding, Whole, whole_weights
from hone.training.side_by_side import Passes, cut_finer

logger = logging.getLogger(__name__)

Gradients = list[tuple[nn.Parameter, Tensor]]  # that are not yet added to the parameters' own
_Pass = tuple[MicroBatch, dict[str, Tensor], Loss, Gradients]

MAX_NONFINITE_STEPS = 3
SMALL = 2**27  # bytes of gradients, of which a few more may wait to be added


class TorchEngine:
    """Holds one rank's part of a model and, when it trains, its optimiser.

    train:     micro-batches of an update; scoring: micro-batches of passes without gradient
    reference: an engine of the same model family in this process, for "full_kl", the exact KL to it
    module:    what is called, an OutputModule around the model, sharded as `sharding` says
    offload:   what lies in CPU memory between the calls
    adapter:   the model's, when it is all that is trained
    ranks:     that share the model; every method is then collective, and each rank brings its own trajectories, or
               each group of `options.sequence_ranks` consecutive ones brings the same
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
        module: nn.Module | None = None,
        sharding: Sharding | None = None,
        ranks: Ranks | None = None,
        offload: OffloadOptions | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        self.model = model.train(optimizer is not None)
        self.module = module or OutputModule(model, options)
        self.sharding = sharding or Whole()
        self.ranks = ranks or Ranks()
        self.leads = self.ranks.rank % options.sequence_ranks == 0  # the first of those with the same trajectories
        self.adapter = adapter
        self.scoring = scoring
        self.train = train or scoring
        self.options = options
        self.optimizer = optimizer
        self.schedule = schedule or Schedule()
        self.grad_clip = grad_clip or float("inf")
        self.reference = reference
        self.peak_lrs = [g["lr"] for g in optimizer.param_groups] if optimizer else []
        self.nonfinite_in_a_row = 0
        self._whole_head: LogitHead | None = None
        self.offload = Offload(self.module, self.sharding, optimizer, self.device, offload or OffloadOptions())

    @property
    def stochastic(self) -> bool:
        return is_stochastic(self.model)

    @property
    def num_parameters(self) -> int:
        """Of the whole model, sharded or not."""
        return self._outputs_of.num_parameters

    @property
    def num_trained(self) -> int:
        """Those of them that are trained."""
        return self._outputs_of.num_trained

    @property
    def device(self) -> torch.device:
        """Where the model computes; its weights may lie elsewhere."""
        return self._outputs_of.device

    @property
    def _outputs_of(self) -> OutputModule:
        return next(m for m in self.module.modules() if isinstance(m, OutputModule))

    def weights(self) -> dict[str, Tensor]:
        """Names as Hugging Face has them, with the whole tensors; an adapter is merged into them."""
        with self.offload.weights():
            weights = dict(self.model.state_dict()) if self.sharding.whole else whole_weights(self.module)
            return weights if self.adapter is None else self.adapter.merged(weights)

    @torch.no_grad()
    def forward(self, batch: Batch, want: Iterable[str], *, mask: str = "response_mask") -> Batch:
        """A batch of the same sequences with one column per output: fp32 [tokens], 0 where `mask` is 0."""
        names = sorted(want)
        columns = {name: torch.zeros(batch.num_tokens) for name in names}
        self.module.eval()
        needed = batch.only(["input_ids", "prompt_length", mask])

        def run(rows: list[int]) -> tuple[MicroBatch, dict[str, Tensor]]:
            micro = MicroBatch.of(needed, rows, mask)
            return micro, self._outputs(micro, frozenset(names))

        with self.offload.weights():
            for passes in self._passes(needed, self.scoring, mask):
                for micro, outputs in run_side_by_side(run, passes.plan, passes.at_once):
                    _fill(columns, outputs, micro)
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
        with self.offload.weights():
            return self._watched_step(mini_batch, objective, watch, training_step=training_step, mask=mask)

    def _watched_step(
        self, mini_batch: Batch, objective: Objective, watch: Iterable[str], *, training_step: int, mask: str
    ) -> tuple[Batch, dict[str, float]]:
        assert self.optimizer is not None
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, float] = defaultdict(float)
        means: dict[str, float] = defaultdict(float)
        watched = {name: torch.zeros(mini_batch.num_tokens) for name in watch}
        infinite = 0
        for micro, outputs, loss in self._gradients(mini_batch, objective, frozenset(watched), mask):
            infinite += not bool(loss.total.isfinite())
            if micro.idle:
                continue
            for name, value in loss.sums.items():
                sums[name] += float(value)
            for name, values in loss.means.items():
                means[name] += float(values.sum())
            _fill(watched, outputs, micro)
        totals = self._sum({"trained": int(mini_batch[mask].sum()), "infinite": infinite})
        count = max(totals["trained"], 1)
        metrics = self._sum({**sums, **{name: value / count for name, value in means.items()}})
        metrics |= self._apply(training_step, trainable=totals["trained"] > 0, finite=not totals["infinite"])
        return Batch(mini_batch.offsets, watched), metrics

    def _sum(self, values: dict[str, float]) -> dict[str, float]:
        """Over all trajectories: of ranks with the same ones, one counts."""
        return self.ranks.sum(values if self.leads else {})

    def _gradients(
        self, batch: Batch, objective: Objective, watch: frozenset[str], mask: str
    ) -> Iterator[tuple[MicroBatch, dict[str, Tensor], Loss]]:
        """Adds the gradient of every micro-batch to the parameters', in an order that no thread can change."""

        def run(rows: list[int], *, apart: bool) -> _Pass:
            micro = MicroBatch.of(batch, rows, mask)
            outputs = self._outputs(micro, objective.want, watch)
            loss = objective(outputs, self._view(micro))
            gradients_of = self._gradients_apart if apart else _add_gradients
            return micro, outputs, loss, gradients_of(self.sharding.loss_scale * loss.total)

        for passes in self._passes(batch, self.train, mask):
            one = partial(run, apart=passes.at_once > 1)
            ahead = AHEAD if self._gradient_bytes < SMALL else 0
            for micro, outputs, loss, gradients in run_side_by_side(one, passes.plan, passes.at_once, ahead=ahead):
                for parameter, gradient in gradients:
                    parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad.add_(gradient)
                gradients.clear()
                yield micro, outputs, loss

    @property
    def _gradient_bytes(self) -> int:
        return sum(p.nbytes for p in self.model.parameters() if p.requires_grad)

    def _gradients_apart(self, loss: Tensor) -> Gradients:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return [(p, gradient) for p, gradient in zip(trained, gradients, strict=True) if gradient is not None]

    def _passes(self, batch: Batch, batching: MicroBatching, mask: str) -> list[Passes]:
        """The micro-batches that have trained tokens, and how many are computed side by side. Ranks that share a
        sharded model all run as many passes: those with fewer end with idle ones, which have no rows."""
        prompts = Prompts.of(batch) if self.options.shared_prompts else None
        trains = torch.zeros(len(batch), dtype=torch.bool).index_fill_(0, batch.segment_ids[batch[mask].bool()], True)
        cut = cut_finer(batching, batch.lengths.tolist(), prompts, self._at_once)
        plans = [[rows for rows in each.plan if bool(trains[rows].any())] for each in cut]
        if self.sharding.whole:
            return [Passes(min(each.at_once, len(plan)), plan) for each, plan in zip(cut, plans, strict=True)]
        (plan,) = plans
        idle = max(self.ranks.gather(len(plan))) - len(plan)
        return [Passes(1, plan + [[] for _ in range(idle)])]

    @property
    def _at_once(self) -> int:
        """How many micro-batches may be computed side by side."""
        alone = not self.sharding.whole or self.options.sequence_ranks > 1 or self.stochastic or moving_rope(self.model)
        return 1 if alone or self.device.type != "cpu" else side_by_side()

    def _apply(self, training_step: int, *, trainable: bool, finite: bool) -> dict[str, float]:
        assert self.optimizer is not None
        factor = self.schedule.factor(training_step)
        for group, peak in zip(self.optimizer.param_groups, self.peak_lrs, strict=True):
            group["lr"] = peak * factor
        metrics = {"lr": self.peak_lrs[0] * factor, "grad_norm": 0.0, "nonfinite_steps": 0.0}
        if not trainable:
            return metrics
        norm = self.sharding.clip(self.module, self.grad_clip)
        if not (finite and math.isfinite(norm)):
            return {**metrics, **self._skip()}
        self.nonfinite_in_a_row = 0
        with self.offload.optimizer_state():
            self.optimizer.step()
        return {**metrics, "grad_norm": norm}

    def _skip(self) -> dict[str, float]:
        bad = [name for name, p in self.model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        self.nonfinite_in_a_row += 1
        logger.warning("an optimiser step was skipped: NaN or infinity in %s", bad[0] if bad else "the loss")
        if self.nonfinite_in_a_row >= MAX_NONFINITE_STEPS:
            raise UserError(
                f"{self.nonfinite_in_a_row} optimiser steps in a row had a NaN or infinite loss or gradient (first in "
                f"{bad[0] if bad else 'the loss'}); lower the learning rate or look at the rewards and advantages"
            )
        return {"nonfinite_steps": 1.0}

    def _outputs(
        self, micro: MicroBatch, want: frozenset[str], watch: frozenset[str] = frozenset()
    ) -> dict[str, Tensor]:
        reference = self._reference(micro) if "full_kl" in want else None
        return self.module(micro.batch, micro.trained, want, watch, reference)

    def _reference(self, micro: MicroBatch) -> Reference:
        reference = self.reference
        assert reference is not None, "full_kl needs a reference"
        with torch.no_grad(), reference.offload.weights():
            hidden = reference.module(micro.batch, micro.trained, frozenset({"hidden"}))["hidden"]
        return Reference(hidden, None if reference.model is self.model else reference._head())

    def _head(self) -> LogitHead:
        """Of a model that does not train: gathered once, by name, as FSDP1's parameters do not know their whole."""
        if self._whole_head is None:
            projection, weights = self.model.get_output_embeddings(), self.weights()
            name = next(name for name, module in self.model.named_modules() if module is projection)
            weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
            self._whole_head = replace(LogitHead.of(self.model), weight=weight, bias=bias)
        return self._whole_head

    def _view(self, micro: MicroBatch) -> TokenView:
        columns = {k: v[micro.trained].to(self.device) for k, v in micro.batch.tokens.items()}
        return TokenView(columns, micro.batch.segment_ids[micro.trained].to(self.device))


def _add_gradients(loss: Tensor) -> Gradients:
    loss.backward()
    return []


def _fill(columns: dict[str, Tensor], outputs: dict[str, Tensor], micro: MicroBatch) -> None:
    """Writes a micro-batch's outputs to their places in the columns of the whole batch."""
    for name, column in columns.items():
        column[micro.places] = outputs[name][: len(micro.places)].detach().float().cpu()
