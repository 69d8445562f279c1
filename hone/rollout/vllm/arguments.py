"""The arguments with which vLLM's engine is made, under vLLM's own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hone.errors import UserError

WORKER = "hone.rollout.vllm.worker.WeightReceiver"
KWARGS = "engine_kwargs.vllm"


@dataclass(frozen=True)
class EngineArguments:
    """Fields are arguments of vLLM's AsyncEngineArgs that hone sets from its own keys; `more` are the user's."""

    model: str
    dtype: str
    seed: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_sleep_mode: bool
    hf_overrides: Mapping[str, Any]
    trust_remote_code: bool = False
    load_format: str = "auto"
    gpu_memory_utilization: float = 0.5
    enforce_eager: bool = True
    enable_chunked_prefill: bool | None = None
    tensor_parallel_size: int = 1
    disable_log_stats: bool = True
    more: Mapping[str, Any] | None = None

    def for_vllm(self) -> dict[str, Any]:
        """What is None is left to vLLM. Prompts and responses are token ids, and how tokens are drawn is said with each
        request: vLLM needs no tokenizer, and reads nothing from the model's generation config. Parts of an engine are
        processes of this machine, also where it starts in one of Ray's, in which vLLM would place them itself."""
        own = {name: value for name, value in asdict(self).items() if value is not None and name != "more"}
        fixed = {
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": WORKER,
        }
        parts = {"distributed_executor_backend": "mp"} if self.tensor_parallel_size > 1 else {}
        return {**own, **fixed, **parts, **(self.more or {})}


def vllm_load_format(load_format: str) -> str:
    """`dummy_*` begins with random weights, which the first hand-over replaces; the others read the model's files."""
    if load_format.startswith("dummy"):
        return "dummy"
    return load_format if load_format == "safetensors" else "auto"


def check_names(more: Mapping[str, Any]) -> None:
    """Raises UserError for arguments that this version of vLLM does not have. Imports vLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    if unknown := sorted(set(more) - known):
        raise UserError(
            f"{KWARGS}: this version of vLLM's engine has no argument {', '.join(unknown)}; names are those of "
            "`vllm serve --help` with _ for -"
        )
