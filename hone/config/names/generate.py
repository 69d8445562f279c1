"""Other names of the keys of `hone generate` and `hone eval`."""

from __future__ import annotations

from collections.abc import Iterator

from ..schema.rollout import AgentKeys, MultiTurnConfig
from .rows import ANY, Renamed, Row, Settled, same_in
from .shared import conversations, ray, reward_function

MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"


def _generate() -> Iterator[Row]:
    yield Renamed("rollout.n", "data.n_samples")
    yield Renamed("data.train_files", "data.path")
    yield Renamed(f"{ROLLOUT}.n", "data.n_samples")
    yield from same_in(MODEL, "model", "path", "trust_remote_code", "external_lib")
    sampling = ("name", "temperature", "top_k", "top_p", "do_sample", "prompt_length", "response_length", "dtype")
    limits = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "ignore_eos", "stop")
    yield from same_in(f"{ROLLOUT}.multi_turn", "rollout.multi_turn", *MultiTurnConfig.model_fields)
    yield from same_in(f"{ROLLOUT}.agent", "rollout.agent", *AgentKeys.model_fields)
    yield from same_in(ROLLOUT, "rollout", *sampling, *limits, "gpu_memory_utilization", "enforce_eager")
    yield from same_in(ROLLOUT, "rollout", "tensor_model_parallel_size")
    for place in ("rollout", ROLLOUT):
        yield from conversations(place, "rollout")
        for name in ("free_cache_engine", "load_format", "enable_chunked_prefill", "disable_log_stats"):
            yield Settled(f"{place}.{name}", ANY, "it is not read here")


GENERATE: tuple[Row, ...] = (*_generate(), *ray())
EVAL: tuple[Row, ...] = tuple(reward_function("reward"))
