"""The `vllm` engine: vLLM's AsyncLLM, whose scheduler and model run in processes of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch import Tensor
from vllm import SamplingParams
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from hone.errors import UserError
from hone.rollout.gate import Gate
from hone.rollout.hand_over import buckets, shared
from hone.rollout.interface import Completion, Sampling
from hone.rollout.requests import check_request, no_distribution
from hone.rollout.stop import StopReader, StopStrings
from hone.rollout.vllm.arguments import EngineArguments
from hone.rollout.vllm.start import start

LARGEST_SEED = 2**63 - 1


class VLLMEngine:
    """Generates with vLLM. All methods must be awaited in one event loop.

    New weights wait for the completions that run, and completions that come meanwhile wait for them: all tokens of a
    completion are of one version, and no keys of older weights are read.
    """

    def __init__(
        self,
        arguments: EngineArguments,
        *,
        eos_token_ids: Iterable[int],
        tokenizer: Any | None = None,
        devices: str | None = None,
    ) -> None:
        """devices: CUDA_VISIBLE_DEVICES of the engine's processes; None: that of this one"""
        self.arguments = arguments
        self.max_model_len = arguments.max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.version = 0
        self._stops = StopReader(tokenizer)
        self._gate = Gate()
        self._names = count()
        self._asleep: set[str] = set()  # of `weights` and `kv_cache`
        self._llm, self._watchdog = start(arguments, devices)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.max_model_len)
        params = sampling_params(sampling, self.eos_token_ids)
        stop = self._stops.of(sampling.stop)
        async with self._gate.passing():
            return self._completion(await self._drawn(prompt_ids, params, stop))

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        assert weights is not None, "vLLM has weights of its own"
        async with self._gate.alone():
            if not self.arguments.disable_log_stats:
                await self._llm.do_log_stats()  # of what it generated with the last weights
            await self._wake({"weights"})
            await self._take(weights, version)
            await self._llm.reset_prefix_cache()
            self.version = version

    async def sleep(self) -> None:
        """Weights go to CPU memory. A CPU build of vLLM keeps all it has."""
        if not self.arguments.enable_sleep_mode or self._asleep:
            return
        async with self._gate.alone():
            await self._llm.sleep(level=1)
            self._asleep = {"weights", "kv_cache"}

    async def wake(self) -> None:
        if self._asleep:
            async with self._gate.alone():
                await self._wake(set(self._asleep))

    def close(self) -> None:
        """Ends the engine's processes."""
        self._llm.shutdown()
        self._watchdog.close()

    async def _take(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        try:
            await self._call("hone_begin_weights")
            for bucket in buckets(weights):
                with shared(bucket) as (path, layout):
                    await self._call("hone_load_weights", path, layout)
            await self._call("hone_finish_weights")
        except UserError:
            raise
        except Exception as error:  # of the worker's process, where only its text is left of it
            raise UserError(
                f"vLLM did not take the weights after step {version}, which it may know under other names: "
                f"{' '.join(str(error).split())}. Set rollout.name=hf."
            ) from error

    async def _wake(self, parts: set[str]) -> None:
        if tags := sorted(parts & self._asleep):
            await self._llm.wake_up(tags)
            self._asleep -= parts

    async def _drawn(self, prompt_ids: Sequence[int], params: SamplingParams, stop: StopStrings | None) -> Drawn:
        """Cancelled, or ended by a stop string, it takes the request out of vLLM's batch."""
        drawn = Drawn()
        try:
            name = f"hone-{next(self._names)}"
            async with aclosing(self._llm.generate({"prompt_token_ids": list(prompt_ids)}, params, name)) as outputs:
                async for output in outputs:
                    drawn.add(output.outputs[0], stop)
                    if drawn.stop_reason == "stop" and not output.finished:
                        break
        except EngineDeadError as error:
            raise _ended() from error
        return drawn

    def _completion(self, drawn: Drawn) -> Completion:
        if not math.isfinite(sum(drawn.logprobs)):
            raise no_distribution(self.version, self.arguments.dtype)
        if drawn.stop_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a completion with {drawn.stop_reason!r}")
        stop_reason: Any = drawn.stop_reason
        return Completion(drawn.token_ids, drawn.logprobs, stop_reason, [self.version] * len(drawn.token_ids))

    async def _call(self, method: str, *arguments: Any) -> None:
        try:
            await self._llm.collective_rpc(method, args=arguments)
        except EngineDeadError as error:
            raise _ended() from error


@dataclass
class Drawn:
    """What vLLM has told of a completion: all at its end, or token by token."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: str | None = None

    def add(self, output: CompletionOutput, stop: StopStrings | None) -> None:
        """The tokens behind a stop string are left out: vLLM draws them until it hears of it."""
        logprobs: Any = output.logprobs  # vLLM's FlatLogprobs, one for each token
        for token, logprob in zip(output.token_ids, logprobs.logprobs, strict=True):
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            if stop is not None and stop.ended(self.token_ids):
                self.stop_reason = "stop"
                return
        self.stop_reason = output.finish_reason


def sampling_params(sampling: Sampling, eos_token_ids: frozenset[int]) -> SamplingParams:
    """vLLM is told every id that ends the completion, and adds none."""
    if sampling.first_temperature is not None:
        raise ValueError("vLLM draws all tokens of a completion alike: first_temperature is not for it")
    stop = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else eos_token_ids)
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=max(sampling.top_k, 0),
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed & LARGEST_SEED,
        stop_token_ids=sorted(stop),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if sampling.stop else RequestOutputKind.FINAL_ONLY,
    )


def _ended() -> UserError:
    return UserError(
        "vLLM's engine process has ended (its own messages say why, above): often memory; lower "
        "rollout.gpu_memory_utilization or rollout.max_num_seqs"
    )
