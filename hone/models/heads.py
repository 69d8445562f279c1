"""From hidden states to log-probabilities, entropy and values, without logits for tokens nobody asks about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel


@dataclass(frozen=True)
class LogitHead:
    """The map from hidden states to next-token logits, with what some families put behind the matrix product."""

    weight: Tensor  # [V, H]
    bias: Tensor | None = None  # [V]
    multiplier: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> LogitHead:
        """Reads the head of a causal language model; Gemma soft-caps its logits, Cohere and Granite scale theirs."""
        projection = model.get_output_embeddings()
        if projection is None:
            raise ValueError(f"{type(model).__name__} has no output embeddings: it is not a causal language model")
        config = model.config
        multiplier = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(projection.weight, getattr(projection, "bias", None), multiplier, softcap)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [tokens, H] -> fp32 logits [tokens, V]."""
        logits = F.linear(hidden, self.weight, self.bias).float()
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def token_logprobs(
    hidden: Tensor,  # [tokens, H] the states that predict the labels
    head: LogitHead,
    labels: Tensor,  # [tokens]
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = True,
    chunk: int | None = None,
    compiled: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log p(label) and, on demand, the entropy of the whole distribution, both fp32 [tokens]. Without `entropy_grad`
    the entropy is only looked at, and nothing is kept for its backward pass.

    With `chunk` tokens at a time (fused kernels) the [chunk, V] logits are computed again in the backward pass instead
    of being kept, so that memory does not grow with tokens times vocabulary. `compiled` fuses what follows the matrix
    product with torch.compile.
    """
    compute = _compiled_logprobs() if compiled else _logprobs_of
    if chunk is None:
        return compute(hidden, head, labels, temperature, entropy, entropy_grad)
    pieces = [
        checkpoint(compute, h, head, y, temperature, entropy, entropy_grad, use_reentrant=False)
        if torch.is_grad_enabled()
        else compute(h, head, y, temperature, entropy, entropy_grad)
        for h, y in zip(hidden.split(chunk), labels.split(chunk), strict=True)
    ]
    entropies = [h for _, h in pieces if h is not None]
    return torch.cat([p for p, _ in pieces]), torch.cat(entropies) if entropy else None


@cache
def _compiled_logprobs() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(_logprobs_of, dynamic=True)


def _logprobs_of(
    hidden: Tensor, head: LogitHead, labels: Tensor, temperature: float, entropy: bool, entropy_grad: bool
) -> tuple[Tensor, Tensor | None]:
    logits = head.logits(hidden)
    if temperature != 1.0:
        logits = logits / temperature
    if not entropy:
        return -F.cross_entropy(logits, labels, reduction="none"), None
    logprobs = logits.log_softmax(-1)
    spread = logprobs if entropy_grad else logprobs.detach()
    return logprobs.gather(-1, labels[:, None]).sum(-1), -(spread.exp() * spread).sum(-1)
