"""A stand-in for SGLang where it cannot run: the same names, and a transformers model behind them.

It takes of what SGLang 0.5.23 takes only the names below, which `test_sglang_names` holds against the real classes,
answers in its form, and has its pitfalls: a refusal is an answer and no exception, weights are taken between a
beginning and an end only, and what was computed before a hand-over is used until the cache is flushed.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, make_dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hone.config.engines import OF_SGLANG

KNOWN_ARGUMENTS = {*OF_SGLANG, "attention_backend", "sampling_backend", "grammar_backend", "max_total_tokens"}
GENERATE = {"input_ids", "sampling_params", "return_logprob", "custom_logit_processor", "rid"}
SAMPLING = {
    "max_new_tokens", "temperature", "sampling_seed", "stop", "stop_token_ids", "ignore_eos", "custom_params",
}  # fmt: skip
METHODS = {
    "update_weights_from_tensor": {"named_tensors", "flush_cache"},
    "begin_weight_update": set(),
    "end_weight_update": set(),
    "flush_cache": set(),
    "release_memory_occupation": {"tags"},
    "resume_memory_occupation": {"tags"},
}  # fmt: skip
TAGS = {"weights", "kv_cache", "cuda_graph"}
OURS = ("engine", "start", "cuts")


class CustomLogitProcessor:
    @classmethod
    def to_str(cls) -> str:
        return json.dumps([cls.__module__, cls.__qualname__])

    @staticmethod
    def from_str(text: str) -> Any:
        module, name = json.loads(text)
        return getattr(importlib.import_module(module), name)()


ServerArgs = make_dataclass("ServerArgs", [(name, Any, field(default=None)) for name in sorted(KNOWN_ARGUMENTS)])


class Manager:
    _subprocess_watchdog = None

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def auto_create_handle_loop(self) -> None: ...

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        self.aborted.append(rid)


class Engine:
    made: list[Engine] = []

    def __init__(self, **arguments: Any) -> None:
        assert set(arguments) <= KNOWN_ARGUMENTS, set(arguments) - KNOWN_ARGUMENTS
        self.arguments, self.calls = arguments, []  # type: ignore[var-annotated]
        self.tokenizer_manager = Manager()
        self.loop: Any = SimpleNamespace(run_until_complete=asyncio.run)
        self.tokenizer = AutoTokenizer.from_pretrained(arguments["tokenizer_path"])
        self.computes = self.holds = self._load()
        self.updating, self.running, self.released = False, 0, set()  # type: ignore[var-annotated]
        Engine.made.append(self)

    def _load(self) -> Any:
        torch.manual_seed(self.arguments["random_seed"] + 10_000)
        path = self.arguments["model_path"]
        if self.arguments["load_format"] == "dummy":
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path)).eval()
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def shutdown(self) -> None: ...

    def get_all_child_pids(self) -> list[int]:
        return []

    async def async_generate(self, **arguments: Any) -> dict[str, Any]:
        assert set(arguments) <= GENERATE and arguments["return_logprob"] is True and not self.released
        params = arguments["sampling_params"]
        assert set(params) <= SAMPLING, set(params) - SAMPLING
        self.calls.append(arguments)
        self.running += 1
        try:
            return await self._draw(arguments["input_ids"], params, arguments.get("custom_logit_processor"))
        finally:
            self.running -= 1

    async def _draw(self, prompt: list[int], params: dict[str, Any], processor: str | None) -> dict[str, Any]:
        drawn: list[tuple[float, int, None]] = []
        generator = torch.Generator().manual_seed(params["sampling_seed"])
        reason: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        while len(drawn) < params["max_new_tokens"]:
            await asyncio.sleep(0)
            drawn.append(self._next([*prompt, *(token for _, token, _ in drawn)], params, processor, generator))
            ids = [token for _, token, _ in drawn]
            if not params["ignore_eos"] and ids[-1] in params["stop_token_ids"]:
                reason = {"type": "stop", "matched": ids[-1]}
                break
            if any(text in self.tokenizer.decode(ids) for text in params["stop"]):
                reason = {"type": "stop", "matched": "text"}
                break
        return {"text": "", "meta_info": {"finish_reason": reason, "output_token_logprobs": drawn}}

    def _next(self, ids: list[int], params: dict[str, Any], processor: str | None, generator: torch.Generator) -> Any:
        with torch.no_grad():
            logits = self.computes(torch.tensor([ids]), use_cache=False).logits[:, -1].float()
        if processor is not None:
            logits = CustomLogitProcessor.from_str(processor)(logits, [params["custom_params"] | {"__req__": self}])
        greedy = params["temperature"] == 0
        logprobs = (logits / (1.0 if greedy else params["temperature"])).log_softmax(-1)[0]
        token = int(logprobs.argmax() if greedy else torch.multinomial(logprobs.exp(), 1, generator=generator))
        return float(logprobs[token]), token, None

    def begin_weight_update(self) -> Any:
        return self._answers("updating", True, refused=self.updating)

    def end_weight_update(self) -> Any:
        return self._answers("updating", False)

    def _answers(self, name: str, value: Any, *, refused: bool = False) -> Any:
        async def answer() -> tuple[bool, str]:
            setattr(self, name, value)
            return not refused, "an update is open" if refused else ""

        return self.loop.run_until_complete(answer())

    def update_weights_from_tensor(self, named_tensors: list[Any], flush_cache: bool = True) -> Any:
        async def take() -> tuple[bool, str]:
            if not self.updating or "weights" in self.released or self.running:
                return False, "no update is open"
            self.holds = copy.deepcopy(self.holds)
            state = dict(named_tensors)
            unknown = set(state) - set(self.holds.state_dict())
            wrong = [n for n in set(state) - unknown if state[n].shape != self.holds.state_dict()[n].shape]
            if unknown or wrong:
                return False, f"cannot load {unknown or wrong}"
            self.holds.load_state_dict(state, strict=False)
            self.holds.tie_weights()
            return True, ""

        return self.loop.run_until_complete(take())

    def flush_cache(self) -> Any:
        async def flush() -> Any:
            if not self.running:
                self.computes = self.holds
            return SimpleNamespace(success=not self.running)

        return self.loop.run_until_complete(flush())

    def release_memory_occupation(self, tags: list[str]) -> Any:
        assert not self.running and set(tags) == TAGS and not self.released
        return self._answers("released", set(tags))

    def resume_memory_occupation(self, tags: list[str]) -> Any:
        assert tags and set(tags) <= self.released
        return self._answers("released", self.released - set(tags))


@contextmanager
def installed() -> Iterator[type[Engine]]:
    """SGLang is this file, whether it is installed or not; hone's adapter is imported anew, and again afterwards."""
    contents = {
        "sglang.srt.entrypoints.engine": {"Engine": Engine},
        "sglang.srt.sampling.custom_logit_processor": {"CustomLogitProcessor": CustomLogitProcessor},
        "sglang.srt.server_args": {"ServerArgs": ServerArgs},
    }
    packages = {".".join(name.split(".")[:end]) for name in contents for end in range(1, len(name.split(".")))}
    with pytest.MonkeyPatch.context() as patch:
        for name in (*packages, *contents):
            module = ModuleType(name)
            module.__dict__.update(contents.get(name, {}))
            patch.setitem(sys.modules, name, module)
        patch.setattr("hone.config.engines.find_spec", lambda name: name)
        Engine.made.clear()
        _forget_ours()
        try:
            yield Engine
        finally:
            _forget_ours()


def _forget_ours() -> None:
    for name in OURS:
        sys.modules.pop(f"hone.rollout.sglang.{name}", None)
