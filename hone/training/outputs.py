"""What a model says of a micro-batch's trained tokens: log-probs, entropy, exact KL, values.

All of it happens inside the forward call of one module, head included, so that a sharding wrapper around the module
sees every use of its weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hone.algorithms import full_kl
from hone.batch import Batch
from hone.models.forward import hidden_states, shared_hidden_states, sliced_hidden_states
from hone.models.heads import LogitHead, LogitMemory, token_logprobs
from hone.models.load import value_head
from hone.models.precision import autocast
from hone.models.ulysses import SequenceRanks
from hone.training.activations import ActivationOffload
from hone.training.micro_batches import Prompts


@dataclass(frozen=True)
class ForwardOptions:
    """How the model is run.

    packed:      sequences laid end to end; shared_prompts: and equal prompts computed once (column prompt_length)
    temperature: the sampler's, so that log-probs are those of the distribution that was sampled
    memory:      which logits exist, and how long
    offload:     keep activations in CPU memory between forward and backward
    compiled:    run the log-prob computation through torch.compile
    sequence_ranks: consecutive ranks that get the same micro-batches and compute a slice of the tokens each (packed)
    """

    packed: bool = True
    shared_prompts: bool = False
    temperature: float = 1.0
    memory: LogitMemory = LogitMemory()
    offload: bool = False
    compiled: bool = False
    compute_dtype: torch.dtype = torch.float32
    sequence_ranks: int = 1


@dataclass(frozen=True)
class Reference:
    """What the exact KL needs of the reference: its states [tokens, H] of the trained tokens that this rank computes,
    and its head; without one, that of the model itself, which an adapter leaves as it is."""

    hidden: Tensor
    head: LogitHead | None


class OutputModule(nn.Module):
    """A causal language model or value model together with what is computed from its hidden states."""

    def __init__(self, model: PreTrainedModel, options: ForwardOptions) -> None:
        super().__init__()
        self.model = model
        self.options = options
        self.device = next(model.parameters()).device
        self.ranks = SequenceRanks(options.sequence_ranks)
        self.num_parameters = sum(p.numel() for p in model.parameters())  # before any sharding
        self.num_trained = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def forward(
        self,
        micro: Batch,
        trained: Tensor,
        want: frozenset[str],
        watch: frozenset[str] = frozenset(),
        reference: Reference | None = None,
    ) -> dict[str, Tensor]:
        """The outputs wanted or watched, at the trained tokens; what is only watched has no gradient. What speaks of
        token t comes from the hidden state of token t-1. "hidden" gives those states themselves, where ranks share the
        tokens only this rank's."""
        device, options = self.device, self.options
        index = trained.to(device)
        activations = ActivationOffload() if options.offload and torch.is_grad_enabled() else nullcontext()
        with activations, autocast(device, next(self.model.parameters()).dtype, options.compute_dtype):
            hidden, mine = self._states(micro, index - 1, device)
            if "hidden" in want:
                return {"hidden": hidden}
            if "values" in want:
                outputs = {"values": value_head(self.model)(hidden).sum(-1).float()}
            else:
                labels = micro["input_ids"][trained].to(device)
                outputs = self._logprobs(hidden, labels if mine is None else labels[mine], want, watch)
            if "full_kl" in want:
                assert reference is not None, "full_kl needs a reference"
                outputs["full_kl"] = self._full_kl(hidden, reference)
        return outputs if mine is None else self.ranks.whole(outputs, mine, len(trained))

    def _states(self, micro: Batch, index: Tensor, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Hidden states [mine, H] of those tokens `index` of the micro-batch that this rank computes, and which those
        are; None: all."""
        ids, lengths = micro["input_ids"].to(device), micro.lengths.tolist()
        prompts = Prompts.of(micro) if self.options.shared_prompts else None
        if self.ranks.size > 1:
            shared = None if prompts is None else (prompts.lengths, prompts.families)
            return sliced_hidden_states(self.model, ids, lengths, index, self.ranks, shared)
        if prompts is not None:
            return shared_hidden_states(self.model, ids, lengths, prompts.lengths, prompts.families, index), None
        return hidden_states(self.model, ids, lengths, index, packed=self.options.packed), None

    def _logprobs(
        self, hidden: Tensor, labels: Tensor, want: frozenset[str], watch: frozenset[str]
    ) -> dict[str, Tensor]:
        options = self.options
        logprobs, entropy = token_logprobs(
            hidden,
            LogitHead.of(self.model),
            labels,
            temperature=options.temperature,
            entropy="entropy" in want | watch,
            entropy_grad="entropy" in want,
            memory=options.memory,
            compiled=options.compiled,
        )
        return {"logprobs": logprobs} if entropy is None else {"logprobs": logprobs, "entropy": entropy}

    def _full_kl(self, hidden: Tensor, reference: Reference) -> Tensor:
        """KL(this model || reference) over the whole vocabulary, [trained tokens]."""
        head, dtype = LogitHead.of(self.model), self.options.compute_dtype
        other = reference.head or head
        return full_kl(
            *(column.to(dtype) for column in (hidden, head.weight, reference.hidden, other.weight)),
            bias=None if head.bias is None else head.bias.to(dtype),
            ref_bias=None if other.bias is None else other.bias.to(dtype),
            scale=head.multiplier,
            softcap=head.softcap,
            temperature=self.options.temperature,
        )
