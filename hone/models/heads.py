"""From hidden states to log-probabilities, entropy and values, without logits for tokens nobody asks about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from hone.models.chosen import EntropyWork, chosen_and_entropy


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


LOGITS_AT_ONCE = 2**24  # 64 MiB in fp32: small beside any model


def logit_chunk(vocabulary: int) -> int:
    """Tokens whose logits may exist at once."""
    return max(1, LOGITS_AT_ONCE // vocabulary)


@dataclass(frozen=True)
class LogitMemory:
    """Which [tokens, vocabulary] tensors exist, and how long.

    chunk:             tokens whose logits exist at once; they are computed again in the backward pass instead of being
                       kept, so that memory does not grow with tokens times vocabulary. None: all of a micro-batch
    entropy_chunk:     tokens whose entropy is computed at once from their log-probs; None: all of the chunk. On a CPU
                       never more than its cache holds
    recompute_entropy: the backward pass computes the probabilities again from the log-probs, which alone are kept
    """

    chunk: int | None = None
    entropy_chunk: int | None = None
    recompute_entropy: bool = False


def token_logprobs(
    hidden: Tensor,  # [tokens, H] the states that predict the labels
    head: LogitHead,
    labels: Tensor,  # [tokens]
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_grad: bool = True,
    memory: LogitMemory = LogitMemory(),  # noqa: B008 frozen
    compiled: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log p(label) and, on demand, the entropy of the whole distribution, both fp32 [tokens]. Without `entropy_grad`
    the entropy is only looked at, and nothing is kept for its backward pass.

    `compiled` fuses what follows the matrix product with torch.compile.
    """
    compute = _compiled_logprobs() if compiled else _logprobs_of
    want = _Want(temperature, entropy, entropy_grad, memory, compiled)
    if memory.chunk is None:
        return compute(hidden, head, labels, want)
    pieces = [
        _recomputed(compute, h, head, y, want)
        for h, y in zip(hidden.split(memory.chunk), labels.split(memory.chunk), strict=True)
    ]
    entropies = [h for _, h in pieces if h is not None]
    return torch.cat([p for p, _ in pieces]), torch.cat(entropies) if entropy else None


@dataclass(frozen=True)
class _Want:
    temperature: float
    entropy: bool
    entropy_grad: bool
    memory: LogitMemory
    compiled: bool


@cache
def _compiled_logprobs() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(_logprobs_of, dynamic=True)


def _recomputed(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args), run again in the backward pass instead of keeping what it needs."""
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)


def _logprobs_of(hidden: Tensor, head: LogitHead, labels: Tensor, want: _Want) -> tuple[Tensor, Tensor | None]:
    logits = head.logits(hidden)
    if want.temperature != 1.0:
        logits = logits / want.temperature
    if want.compiled:
        return _operations(logits, labels, want)
    work = EntropyWork(want.entropy_grad, want.memory.entropy_chunk, want.memory.recompute_entropy)
    return chosen_and_entropy(logits, labels, work if want.entropy else None)


def _operations(logits: Tensor, labels: Tensor, want: _Want) -> tuple[Tensor, Tensor | None]:
    """`chosen_and_entropy` as single operations, which torch.compile fuses itself."""
    if not want.entropy:
        return -F.cross_entropy(logits, labels, reduction="none"), None
    all_logprobs = logits.log_softmax(-1)
    spread = all_logprobs if want.entropy_grad else all_logprobs.detach()
    return all_logprobs.gather(-1, labels[:, None]).sum(-1), _entropy(spread, want.memory)


def _entropy(logprobs: Tensor, memory: LogitMemory) -> Tensor:
    """[tokens, V] -> [tokens]"""
    pieces = logprobs.split(memory.entropy_chunk or len(logprobs))
    if memory.recompute_entropy:
        return torch.cat([_recomputed(_entropy_of, piece) for piece in pieces])
    return torch.cat([_entropy_of(piece) for piece in pieces])


def _entropy_of(logprobs: Tensor) -> Tensor:
    return -(logprobs.exp() * logprobs).sum(-1)
