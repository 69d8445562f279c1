"""The `sglang` engine: SGLang's Engine, whose scheduler and model run in processes of their own."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import signal
import threading
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from torch import Tensor

from hone.errors import UserError
from hone.rollout.gate import Gate
from hone.rollout.hand_over import buckets
from hone.rollout.interface import Completion, Sampling
from hone.rollout.requests import check_request, no_distribution
from hone.rollout.sglang.arguments import EngineArguments
from hone.rollout.sglang.cuts import Cuts, cut, parameters
from hone.rollout.sglang.start import own_signals, start
from hone.rollout.starting import said

LARGEST_SEED = 2**63 - 1
IDLE_SECONDS = 60.0  # for requests that were cancelled to leave SGLang
PARTS = ("weights", "kv_cache", "cuda_graph")  # of the memory, under SGLang's names


class SGLangEngine:
    """Generates with SGLang. All methods must be awaited in one event loop.

    New weights wait for the completions that run, and completions that come meanwhile wait for them: all tokens of a
    completion are of one version, and no keys of older weights are read.
    """

    def __init__(self, arguments: EngineArguments, *, eos_token_ids: Iterable[int], devices: str | None = None) -> None:
        """devices: CUDA_VISIBLE_DEVICES of the engine's processes; None: that of this one"""
        self.arguments = arguments
        self.max_model_len = arguments.max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.version = 0
        self._gate = Gate()
        self._names = count()
        self._asleep: set[str] = set()  # of PARTS
        self._listening = False
        self._ended = asyncio.Event()
        self._llm = start(arguments, devices)
        atexit.register(self.close)  # before multiprocessing, which would wait for the engine's processes for ever

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.max_model_len)
        request = request_of(sampling, self.eos_token_ids)
        async with self._gate.passing():
            answer = await self._finished(list(prompt_ids), request)
            return self._completion(answer["meta_info"], sampling)

    async def update_weights(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        assert weights is not None, "SGLang has weights of its own"
        async with self._gate.alone():
            await self._wake({"weights"})
            await self._in_update("begin_weight_update")
            try:
                for bucket in buckets(weights):
                    await self._take([(name, _to_send(tensor)) for name, tensor in bucket], version)
            finally:
                await self._in_update("end_weight_update")
            await self._forget()
            self.version = version

    async def sleep(self) -> None:
        """Weights go to CPU memory, the KV cache's memory is given back; without a GPU nothing happens."""
        if not self.arguments.enable_memory_saver or self._asleep:
            return
        async with self._gate.alone():
            await self._forget()
            await self._answer(self._llm.release_memory_occupation(list(PARTS)))
            self._asleep = set(PARTS)

    async def wake(self) -> None:
        if self._asleep:
            async with self._gate.alone():
                await self._wake(set(self._asleep))

    def close(self) -> None:
        """Ends the engine's processes. May be called again."""
        atexit.unregister(self.close)
        if (watchdog := self._llm.tokenizer_manager._subprocess_watchdog) is not None:
            watchdog.stop()
        for process in self._llm.get_all_child_pids():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    async def _take(self, bucket: list[tuple[str, Tensor]], version: int) -> None:
        """Raises UserError for what SGLang does not take: it answers so, and goes on with what it has."""
        success, message = await self._answer(self._llm.update_weights_from_tensor(bucket, flush_cache=False))
        if not success:
            raise UserError(
                f"SGLang did not take the weights after step {version}, which it may know under other names: "
                f"{said(message)}. Set rollout.name=hf."
            )

    async def _in_update(self, method: str) -> None:
        """Newer versions hand weights over between a beginning and an end."""
        if hasattr(self._llm, method):
            success, message = await self._answer(getattr(self._llm, method)())
            if not success:
                raise UserError(f"SGLang refused {method}: {said(message)}")

    async def _forget(self) -> None:
        """Drops the keys that older weights computed, once requests that were cancelled have left."""
        clock = asyncio.get_running_loop().time
        until = clock() + IDLE_SECONDS
        while not (await self._answer(self._llm.flush_cache())).success:
            if clock() > until:
                raise UserError(f"SGLang still generates {IDLE_SECONDS:g} seconds after its last request ended")
            await asyncio.sleep(0.05)

    async def _wake(self, parts: set[str]) -> None:
        if tags := [part for part in PARTS if part in parts & self._asleep]:
            await self._answer(self._llm.resume_memory_occupation(tags))
            self._asleep -= parts

    async def _finished(self, prompt_ids: list[int], request: dict[str, Any]) -> dict[str, Any]:
        """Cancelled, it takes the request out of SGLang's batch."""
        name = f"hone-{os.getpid()}-{next(self._names)}."  # SGLang takes back all whose names begin so
        try:
            coroutine = self._llm.async_generate(input_ids=prompt_ids, rid=name, return_logprob=True, **request)
            return dict(await self._answer(coroutine))
        except asyncio.CancelledError:
            self._llm.tokenizer_manager.abort_request(rid=name)
            raise

    def _completion(self, told: dict[str, Any], sampling: Sampling) -> Completion:
        reason = told["finish_reason"]
        if reason["type"] not in ("stop", "length"):
            raise UserError(f"SGLang did not answer a request ({reason['type']}): {said(reason.get('message'))}")
        logprobs = [float(logprob) for logprob, *_ in told["output_token_logprobs"]]
        tokens = [int(token) for _, token, *_ in told["output_token_logprobs"]]
        if not math.isfinite(sum(logprobs)):
            raise no_distribution(self.version, self.arguments.dtype)
        size, stopped = _until_stop_id(tokens, sampling), reason["type"] == "stop"
        if size is not None:
            tokens, logprobs, stopped = tokens[:size], logprobs[:size], True
        elif not stopped and len(tokens) < sampling.max_tokens:
            raise UserError(
                f"SGLang ended a completion after {len(tokens)} of {sampling.max_tokens} tokens: its KV cache is too "
                "small; raise rollout.gpu_memory_utilization"
            )
        return Completion(tokens, logprobs, "stop" if stopped else "length", [self.version] * len(tokens))

    async def _answer(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """What SGLang says. Raises UserError where its processes end before it does."""
        self._listen()
        answer, ended = asyncio.ensure_future(coroutine), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({answer, ended}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            raise UserError(
                "a process of SGLang's has ended (its own messages say why, above): often memory; lower "
                "rollout.gpu_memory_utilization or rollout.max_num_seqs"
            )
        finally:
            answer.cancel()
            ended.cancel()

    def _listen(self) -> None:
        """SGLang begins to read its processes' answers at the first call, and takes signals then. SIGQUIT says that
        one of its processes has failed."""
        if self._listening:
            return
        self._listening = True
        loop = asyncio.get_running_loop()
        in_main_thread = threading.current_thread() is threading.main_thread()
        with own_signals():
            self._llm.tokenizer_manager.auto_create_handle_loop()
            if in_main_thread:
                loop.remove_signal_handler(signal.SIGTERM)
        if in_main_thread:
            loop.add_signal_handler(signal.SIGQUIT, self._ended.set)


def request_of(sampling: Sampling, eos_token_ids: frozenset[int]) -> dict[str, Any]:
    """Arguments of SGLang's `async_generate` that say how to draw."""
    if not cut(sampling):
        return {"sampling_params": sampling_params(sampling, eos_token_ids)}
    params = sampling_params(sampling, eos_token_ids) | {"custom_params": parameters(sampling)}
    return {"sampling_params": params, "custom_logit_processor": Cuts.to_str()}


def sampling_params(sampling: Sampling, eos_token_ids: frozenset[int]) -> dict[str, Any]:
    """Under SGLang's names. With ignore_eos it looks for no ids at all: `_until_stop_id` then does."""
    if sampling.first_temperature is not None:
        raise ValueError("SGLang draws all tokens of a completion alike: first_temperature is not for it")
    if sampling.repetition_penalty != 1.0:
        raise ValueError("SGLang penalises no tokens of the prompt: repetition_penalty is not for it")
    return {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "sampling_seed": sampling.seed & LARGEST_SEED,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(eos_token_ids | set(sampling.stop_token_ids)),
        "ignore_eos": sampling.ignore_eos,
    }


def _until_stop_id(tokens: list[int], sampling: Sampling) -> int | None:
    """How many tokens there are up to the first stop id, for a completion in which SGLang did not look for it."""
    if not sampling.ignore_eos:
        return None
    found = [place for place, token in enumerate(tokens) if token in sampling.stop_token_ids]
    return found[0] + 1 if found else None


def _to_send(tensor: Tensor) -> Tensor:
    """Of a CPU tensor a copy: what goes to another process is moved to shared memory where it is."""
    return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach()
