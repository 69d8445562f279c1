"""The one primitive that everything which generates awaits: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How one completion is drawn.

    temperature: 0 is greedy; top_k -1 or 0, top_p 1 and min_p 0 switch those cuts off
    first_temperature: of a completion's first token, which top_k, top_p and min_p then do not cut; None: temperature
    stop:        strings that end the completion with the first token after which its text contains one; that token is
                 kept whole, and nothing is cut
    seed:        the same seed gives the same draws whatever else is being generated
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    first_temperature: float | None = None
    seed: int = 0


@dataclass
class Completion:
    """What one call gave.

    logprobs:    of each token under the distribution it was drawn from (greedy: under the model at temperature 1)
    stop_reason: `stop` when a stop token or a stop string ended it (with the last id), `length` when the limit did
    versions:    the weight version that produced each token
    """

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]
    versions: list[int]


class RolloutEngine(Protocol):
    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion: ...

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """New weights under Hugging Face names; None when the engine shares the trainer's tensors."""
        ...

    async def sleep(self) -> None:
        """Gives the KV cache's memory back until `wake`."""
        ...

    async def wake(self) -> None: ...
