"""A completion on its way through the `hf` engine, and the prompts that its requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hone.rollout.interface import Completion, Sampling
from hone.rollout.stop import StopStrings


@dataclass(eq=False)
class Request:
    """version: of the weights when it got a slot, -1 before; slot: of the cache, where its keys and values are"""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stop_ids: frozenset[int]
    stop_strings: StopStrings | None
    future: asyncio.Future[Completion]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stop_reason: Literal["stop", "length"] | None = None  # None while it runs
    version: int = -1
    slot: int = -1

    @property
    def longest(self) -> int:
        """Tokens that it may come to."""
        return len(self.prompt_ids) + self.sampling.max_tokens

    @property
    def room(self) -> int:
        """Tokens until it is as long as it may get."""
        return self.sampling.max_tokens - len(self.token_ids)

    @property
    def cached(self) -> int:
        """Tokens whose keys and values are in the cache, once it draws: all but the last one."""
        return len(self.prompt_ids) + len(self.token_ids) - 1

    @property
    def cached_ids(self) -> tuple[int, ...]:
        return (*self.prompt_ids, *self.token_ids[:-1])

    @property
    def sampling_now(self) -> Sampling:
        """How the next token is drawn: the first one may have a temperature of its own, and is then not cut."""
        first = self.sampling.first_temperature
        if first is None or self.token_ids:
            return self.sampling
        return replace(self.sampling, temperature=first, top_k=-1, top_p=1.0, min_p=0.0)

    def extend(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Only the last of the tokens may end it."""
        self.token_ids += tokens
        self.logprobs += logprobs
        self.versions += [version] * len(tokens)
        ended = self.token_ids[-1] in self.stop_ids
        if ended or (self.stop_strings is not None and self.stop_strings.ended(self.token_ids)):
            self.stop_reason = "stop"
        elif not self.room:
            self.stop_reason = "length"

    def finish(self) -> None:
        if not self.future.done():
            assert self.stop_reason is not None
            self.future.set_result(Completion(self.token_ids, self.logprobs, self.stop_reason, self.versions))


@dataclass(eq=False)
class Prompt:
    """A prompt that is being computed, once for all the requests that continue it; `done` of its tokens are in the
    slots of all of them."""

    ids: tuple[int, ...]
    requests: list[Request] = field(default_factory=list)
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.ids) - self.done


def admissible(prompts: Iterable[tuple[Hashable, int]], slots: int, max_tokens: int, used: int = 0) -> int:
    """How many of the waiting (prompt, its tokens) fit the free slots and the budget of tokens, of which some are used.
    A prompt is computed once, and one that is longer than the budget alone."""
    seen: set[Hashable] = set()
    count, tokens = 0, used
    for prompt, length in prompts if slots else ():
        tokens += 0 if prompt in seen else length
        if tokens > max_tokens and (count or used):
            break
        seen.add(prompt)
        count += 1
        if count == slots:
            break
    return count
