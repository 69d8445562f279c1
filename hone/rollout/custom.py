"""A class of the user's that generates: what it is made with, and what is held against what it promises."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hone.config.schema.rollout import RolloutConfig
from hone.errors import UserError
from hone.rollout.interface import Completion, RolloutEngine, Sampling
from hone.rollout.requests import check_request
from hone.user_code import load_class, quote

SECTION = "actor_rollout_ref.rollout.agent.custom_async_server"
METHODS = ("generate", "update_weights", "sleep", "wake")
ROUNDING = 1e-4  # by which a log-prob may lie above 0


@dataclass(frozen=True)
class ServerSettings:
    """What the class is made with: `YourServer(settings)`.

    model_path:    folder of the model that is trained
    vocabulary:    how many token ids the model knows
    eos_token_ids: every id that ends a completion, unless the sampling says ignore_eos
    max_model_len: longest prompt and completion together
    dtype, device: in which the engine should compute, and where the trainer's weights are
    rollout:       all keys of `actor_rollout_ref.rollout`
    rank, ranks:   every rank makes a server of its own
    """

    model_path: str
    tokenizer: PreTrainedTokenizerBase
    vocabulary: int
    eos_token_ids: frozenset[int]
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    seed: int
    rollout: RolloutConfig
    rank: int = 0
    ranks: int = 1


def server_class(path: str, name: str) -> type:
    """Raises UserError for a file without that class, or a class without the methods of an engine."""
    found = load_class(path, name, section=SECTION)
    for method in METHODS:
        if not inspect.iscoroutinefunction(getattr(found, method, None)):
            has = "is not `async def`" if hasattr(found, method) else "is missing"
            needs = f"its method {method} {has}, and it needs {', '.join(METHODS)}"
            raise UserError(f"{SECTION}.name={name} ({path}): {needs}")
    return found


class CustomServer:
    """The user's server, whose mistakes become one message each."""

    def __init__(self, path: str, name: str, settings: ServerSettings) -> None:
        self.settings = settings
        self.max_model_len = settings.max_model_len
        self._file, self._where = path, f"{SECTION}.name={name} ({path})"
        made = server_class(path, name)
        try:
            self._server: RolloutEngine = made(settings)
        except UserError:
            raise
        except Exception as problem:
            raise UserError(f"{self._where} could not be made: {quote(problem, path)}") from problem

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.max_model_len)
        completion = await self._awaited("generate", prompt_ids, sampling)
        if wrong := _wrong(completion, sampling, self.settings.vocabulary):
            raise UserError(f"{self._where}: generate returned {wrong}")
        return completion

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        await self._awaited("update_weights", weights, version)

    async def sleep(self) -> None:
        await self._awaited("sleep")

    async def wake(self) -> None:
        await self._awaited("wake")

    async def _awaited(self, method: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._server, method)(*arguments)
        except UserError:
            raise
        except Exception as problem:
            raise UserError(f"{self._where}: {method} failed: {quote(problem, self._file)}") from problem


def _wrong(completion: Any, sampling: Sampling, vocabulary: int) -> str | None:
    """What is not right with an answer, in words that go on after `returned`."""
    if not isinstance(completion, Completion):
        return f"{completion!r:.80}: expected a hone.rollout.interface.Completion"
    tokens, logprobs, versions = completion.token_ids, completion.logprobs, completion.versions
    if not len(tokens) == len(logprobs) == len(versions):
        return f"{len(tokens)} token_ids, {len(logprobs)} logprobs and {len(versions)} versions: expected one of each"
    if not 1 <= len(tokens) <= sampling.max_tokens:
        return f"{len(tokens)} tokens: expected 1 to max_tokens={sampling.max_tokens}"
    for token in tokens:
        if not isinstance(token, Integral) or not 0 <= token < vocabulary:
            return f"the token id {token!r}: expected 0 to {vocabulary - 1}, which the model knows"
    for logprob in logprobs:
        if not isinstance(logprob, Real) or not math.isfinite(logprob) or logprob > ROUNDING:
            return f"the log-prob {logprob!r}: expected a finite number that is not above 0"
    if not all(isinstance(version, Integral) for version in versions):
        return f"the versions {versions!r:.80}: expected the numbers that update_weights was given"
    if completion.stop_reason not in ("stop", "length"):
        return f"the stop_reason {completion.stop_reason!r}: expected 'stop' or 'length'"
    return None
