"""What a model says of a micro-batch's trained tokens: log-probs, entropy, exact KL, values.

All of it happens inside the forward call of one module, head included, so that a sharding wrapper around the module
sees every use of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hone.algorithms import full_kl
from hone.batch import Batch
from hone.models.forward import hidden_states, shared_hidden_states
from hone.models.heads import LogitHead, token_logprobs
from hone.models.load import value_head
from hone.models.precision import autocast
from hone.training.micro_batches import Prompts


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


@dataclass(frozen=True)
class Reference:
    """What the exact KL needs of the reference: its states of the trained tokens [tokens, H] and its head; without
    one, that of the model itself, which an adapter leaves as it is."""

    hidden: Tensor
    head: LogitHead | None


class OutputModule(nn.Module):
    """A causal language model or value model together with what is computed from its hidden states."""

    def __init__(self, model: PreTrainedModel, options: ForwardOptions) -> None:
        super().__init__()
        self.model = model
        self.options = options
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
        token t comes from the hidden state of token t-1. "hidden" gives those states themselves."""
        device = next(self.model.parameters()).device
        index = trained.to(device)
        with autocast(device, next(self.model.parameters()).dtype, self.options.compute_dtype):
            hidden = self._states(micro, index - 1, device)
            if "hidden" in want:
                return {"hidden": hidden}
            if "values" in want:
                return {"values": value_head(self.model)(hidden).sum(-1).float()}
            outputs = self._logprobs(hidden, micro["input_ids"][trained].to(device), want, watch)
            if "full_kl" in want:
                assert reference is not None, "full_kl needs a reference"
                outputs["full_kl"] = self._full_kl(hidden, reference)
        return outputs

    def _states(self, micro: Batch, index: Tensor, device: torch.device) -> Tensor:
        """[index, H] hidden states of these tokens of the micro-batch."""
        ids, lengths = micro["input_ids"].to(device), micro.lengths.tolist()
        if self.options.shared_prompts:
            prompts = Prompts.of(micro)
            return shared_hidden_states(self.model, ids, lengths, prompts.lengths, prompts.families, index)
        return hidden_states(self.model, ids, lengths, packed=self.options.packed).index_select(0, index)

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
            chunk=options.chunk,
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
