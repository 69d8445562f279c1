"""The arguments with which SGLang's engine is made, under SGLang's own names."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hone.errors import UserError

KWARGS = "engine_kwargs.sglang"
SPARE_TOKENS = 8  # SGLang keeps some of its context length for itself, and would end the longest completions early
ON_CPU = {"attention_backend": "torch_native", "sampling_backend": "pytorch"}  # the kernels of GPUs are its defaults


@dataclass(frozen=True)
class EngineArguments:
    """What hone sets from its own keys, under the names of SGLang's ServerArgs where those mean the same.

    max_model_len:        longest prompt and completion together
    max_tokens_at_once:   in one forward pass; `split_prompts` says whether a longer prompt is computed in pieces
    json_model_override_args: changes of the model's configuration, not yet as JSON
    quiet:                keep SGLang's own log to errors
    more:                 the user's arguments
    """

    model_path: str
    tokenizer_path: str
    device: str
    dtype: str
    random_seed: int
    max_model_len: int
    max_running_requests: int
    max_tokens_at_once: int
    enable_memory_saver: bool
    json_model_override_args: Mapping[str, Any]
    trust_remote_code: bool = False
    load_format: str = "auto"
    mem_fraction_static: float = 0.5
    disable_cuda_graph: bool = True
    split_prompts: bool = True
    tp_size: int = 1
    quiet: bool = True
    more: Mapping[str, Any] | None = None

    def for_sglang(self) -> dict[str, Any]:
        """What a user's argument says is what counts; what is None is left to SGLang.

        Weights that sleep are kept in the CPU's memory, since a wake-up need not come with a hand-over.
        """
        own = asdict(self)
        for name in ("max_model_len", "max_tokens_at_once", "split_prompts", "quiet", "more"):
            del own[name]
        own |= {
            "context_length": self.max_model_len + SPARE_TOKENS,
            "max_prefill_tokens": self.max_tokens_at_once,
            "chunked_prefill_size": self.max_tokens_at_once if self.split_prompts else -1,
            "json_model_override_args": json.dumps(dict(self.json_model_override_args)),
            "enable_weights_cpu_backup": self.enable_memory_saver,
            "log_level": "error" if self.quiet else "info",
            "enable_custom_logit_processor": True,
            "grammar_backend": "none",
            **(ON_CPU if self.device == "cpu" else {}),
        }
        return own | {name: value for name, value in (self.more or {}).items() if value is not None}


def sglang_load_format(load_format: str) -> str:
    """`dummy_*` begins with random weights, which the first hand-over replaces; the others read the model's files."""
    if load_format.startswith("dummy"):
        return "dummy"
    return load_format if load_format == "safetensors" else "auto"


def check_names(more: Mapping[str, Any]) -> None:
    """Raises UserError for arguments that this version of SGLang does not have. Imports SGLang."""
    from sglang.srt.server_args import ServerArgs

    if unknown := sorted(set(more) - set(inspect.signature(ServerArgs).parameters)):
        raise UserError(
            f"{KWARGS}: this version of SGLang's engine has no argument {', '.join(unknown)}; names are those of "
            "`python -m sglang.launch_server --help` with _ for -"
        )
