"""The engine that generates: what its keys need, and which of them rest with the one that is chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec
from typing import Any

from .problems import Problem
from .schema import GenerationConfig, PPOConfig

ROLLOUT = "actor_rollout_ref.rollout"
NAMES = {"vllm": "vLLM", "sglang": "SGLang"}  # of engines that are packages of their own

# Settings of engines that run in processes of their own.
OTHER_ENGINES = (
    "tensor_model_parallel_size",
    "gpu_memory_utilization",
    "enforce_eager",
    "load_format",
    "disable_log_stats",
    "engine_kwargs.vllm",
    "engine_kwargs.sglang",
)
# Arguments of an engine that hone sets, and the key that they come from; None: they are not the user's to choose.
OF_VLLM = {
    "model": "actor_rollout_ref.model.path",
    "dtype": f"{ROLLOUT}.dtype",
    "seed": "trainer.seed",
    "max_model_len": f"{ROLLOUT}.max_model_len",
    "max_num_seqs": f"{ROLLOUT}.max_num_seqs",
    "max_num_batched_tokens": f"{ROLLOUT}.max_num_batched_tokens",
    "enable_sleep_mode": f"{ROLLOUT}.free_cache_engine",
    "hf_overrides": "actor_rollout_ref.model.override_config.model_config",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "load_format": f"{ROLLOUT}.load_format",
    "gpu_memory_utilization": f"{ROLLOUT}.gpu_memory_utilization",
    "enforce_eager": f"{ROLLOUT}.enforce_eager",
    "enable_chunked_prefill": f"{ROLLOUT}.enable_chunked_prefill",
    "tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
    "disable_log_stats": f"{ROLLOUT}.disable_log_stats",
    "skip_tokenizer_init": None,
    "generation_config": None,
    "logprobs_mode": None,
    "worker_extension_cls": None,
}
OF_SGLANG = {
    "model_path": "actor_rollout_ref.model.path",
    "tokenizer_path": "data.tokenizer",
    "device": "trainer.device",
    "dtype": f"{ROLLOUT}.dtype",
    "random_seed": "trainer.seed",
    "context_length": f"{ROLLOUT}.max_model_len",
    "max_running_requests": f"{ROLLOUT}.max_num_seqs",
    "max_prefill_tokens": f"{ROLLOUT}.max_num_batched_tokens",
    "chunked_prefill_size": f"{ROLLOUT}.enable_chunked_prefill",
    "enable_memory_saver": f"{ROLLOUT}.free_cache_engine",
    "enable_weights_cpu_backup": f"{ROLLOUT}.free_cache_engine",
    "json_model_override_args": "actor_rollout_ref.model.override_config.model_config",
    "trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "load_format": f"{ROLLOUT}.load_format",
    "mem_fraction_static": f"{ROLLOUT}.gpu_memory_utilization",
    "disable_cuda_graph": f"{ROLLOUT}.enforce_eager",
    "tp_size": f"{ROLLOUT}.tensor_model_parallel_size",
    "log_level": f"{ROLLOUT}.disable_log_stats",
    "skip_tokenizer_init": None,
    "enable_custom_logit_processor": None,
    "custom_sigquit_handler": None,
    "dp_size": None,
    "nnodes": None,
}
DETERMINISTIC = "enable_deterministic_inference"
SET_BY_HONE = {"vllm": OF_VLLM, "sglang": OF_SGLANG}


def engine_package(config: PPOConfig | GenerationConfig) -> Iterator[Problem]:
    """An engine that is a package of its own must be installed where it is asked for."""
    section, name = _engine(config)
    if name in NAMES and find_spec(name) is None:
        fix = f'pip install "hone-rl[{name}]" (for a CPU see docs/rollout.md), or set {section}.name=hf'
        yield Problem(f"{section}.name", f"{name} is not installed", f"the package {name}", fix)


def engine_problems(config: PPOConfig | GenerationConfig) -> Iterator[Problem]:
    """What the engine would refuse, or what would be set twice."""
    section, name = _engine(config)
    if name not in NAMES:
        return
    if isinstance(config, PPOConfig):
        yield from _set_twice(config)
        yield from _whole_prompts(config)
    yield from _engines_of_ranks(config, section)
    if name == "vllm":
        yield from _a_token_for_each(config, section)


def _a_token_for_each(config: PPOConfig | GenerationConfig, section: str) -> Iterator[Problem]:
    rollout = config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout
    if rollout.max_num_batched_tokens < rollout.max_num_seqs:
        key, other = f"{section}.max_num_batched_tokens", f"{section}.max_num_seqs"
        wrong = f"{rollout.max_num_batched_tokens} are less than one token for each of {other}={rollout.max_num_seqs}"
        fix = f"lower {other}, or raise {key}"
        yield Problem(key, wrong, "max_num_batched_tokens >= max_num_seqs", fix, (other,))


def engine_notices(
    config: PPOConfig | GenerationConfig, user_keys: Collection[str], *, may_have_gpu: bool
) -> Iterator[str]:
    section, name = _engine(config)
    if name == "hf":
        yield from _idle(config, section, user_keys)
    if isinstance(config, GenerationConfig):
        return
    rollout = config.actor_rollout_ref.rollout
    if name == "hf":
        yield from _resting(config, user_keys)
    elif name in NAMES:
        yield from _of_others(rollout.name, user_keys)
        if f"{ROLLOUT}.free_cache_engine" in user_keys and not may_have_gpu:
            yield f"{ROLLOUT}.free_cache_engine rests: on a CPU {NAMES[rollout.name]} keeps the memory of its KV cache"
        if name == "sglang" and not own_arguments(config).get(DETERMINISTIC):
            yield (
                f"{ROLLOUT}.name=sglang: runs with the same trainer.seed draw different responses, unless "
                f"{ROLLOUT}.engine_kwargs.sglang.{DETERMINISTIC}=True"
            )
    else:
        yield from _stands_in(user_keys)
    key = f"{ROLLOUT}.enable_chunked_prefill"
    if name == "vllm" and key in user_keys and rollout.enable_chunked_prefill and not may_have_gpu:
        yield f"{key}=True rests: on a CPU vLLM computes each prompt in one pass"
    key = f"{ROLLOUT}.calculate_log_probs"
    if key in user_keys and not rollout.calculate_log_probs:
        yield f"{key}=False: engines give log-probs with their tokens; they are kept all the same"


def _stands_in(user_keys: Collection[str]) -> Iterator[str]:
    """With a class of the user's, no engine of a package is started."""
    server = f"{ROLLOUT}.agent.custom_async_server"
    resting = [f"{ROLLOUT}.name"] + [f"{ROLLOUT}.engine_kwargs.{name}" for name in NAMES]
    for key in resting:
        if _is_set(key, user_keys):
            yield f"{key} rests: the class {server}.name generates"


def _of_others(name: str, user_keys: Collection[str]) -> Iterator[str]:
    """Arguments for an engine that is not the one that generates."""
    for other in NAMES:
        if other != name and _is_set(f"{ROLLOUT}.engine_kwargs.{other}", user_keys):
            yield f"{ROLLOUT}.engine_kwargs.{other} rests: {ROLLOUT}.name={name}"


def _resting(config: PPOConfig, user_keys: Collection[str]) -> Iterator[str]:
    """hone's own engine computes as the trainer does and, on one rank, has its weights."""
    rollout = config.actor_rollout_ref.rollout
    precision = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
    if f"{ROLLOUT}.dtype" in user_keys and rollout.dtype != "auto":
        yield f"{ROLLOUT}.dtype={rollout.dtype} rests: the hf engine computes with the policy's weights, in {precision}"
    if f"{ROLLOUT}.verify_weights" in user_keys and config.ranks == 1 and rollout.verify_weights != "never":
        yield f"{ROLLOUT}.verify_weights rests: {ROLLOUT}.name=hf on one rank generates with the trainer's own weights"


def _idle(config: PPOConfig | GenerationConfig, section: str, user_keys: Collection[str]) -> Iterator[str]:
    idle = [f"{section}.{name}" for name in OTHER_ENGINES if _is_set(f"{section}.{name}", user_keys)]
    rollout = config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout
    if rollout.tensor_model_parallel_size == 1:
        idle = [key for key in idle if not key.endswith("tensor_model_parallel_size")]
    if idle:
        where = "the trainer's process" if isinstance(config, PPOConfig) else "the rank's process"
        yield f"{section}.name=hf runs in {where} on 1 device and does not use " + ", ".join(idle)


def _set_twice(config: PPOConfig) -> Iterator[Problem]:
    name = config.actor_rollout_ref.rollout.name
    ours, section = SET_BY_HONE[name], f"{ROLLOUT}.engine_kwargs.{name}"
    for argument in own_arguments(config):
        if argument in ours:
            key = ours[argument]
            fix = f"remove it, and set {key}" if key else "remove it"
            involves = () if key is None else (key,)
            wrong = f"{argument} is set by hone"
            yield Problem(section, wrong, f"other arguments of {NAMES[name]}'s engine", fix, involves)


def own_arguments(config: PPOConfig) -> dict[str, Any]:
    """What the user hands to the engine that generates, as it is."""
    rollout = config.actor_rollout_ref.rollout
    given = {"vllm": rollout.engine_kwargs.vllm, "sglang": rollout.engine_kwargs.sglang.model_dump(exclude_none=True)}
    return given.get(rollout.engine, {})


def _engines_of_ranks(config: PPOConfig | GenerationConfig, section: str) -> Iterator[Problem]:
    """An engine's processes are all of one machine, whose ranks must make whole engines."""
    rollout = config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout
    size, here = rollout.tensor_model_parallel_size, config.trainer.n_gpus_per_node
    if here % size:
        key, other = f"{section}.tensor_model_parallel_size", "trainer.n_gpus_per_node"
        wrong = f"engines of {size} ranks each do not come out even on a machine's {other}={here}"
        yield Problem(key, wrong, f"a divisor of {other}", f"set {key}=1", (other,))


def _whole_prompts(config: PPOConfig) -> Iterator[Problem]:
    rollout = config.actor_rollout_ref.rollout
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    if not rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < longest:
        key, switch = f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.enable_chunked_prefill"
        wrong = f"{rollout.max_num_batched_tokens} tokens may not hold a prompt, which {switch}=False does not split"
        yield Problem(key, wrong, f"{longest} or more", f"set {key}={longest}, or {switch}=True", (switch,))


def _is_set(key: str, user_keys: Collection[str]) -> bool:
    return any(given == key or given.startswith(f"{key}.") for given in user_keys)


def _engine(config: PPOConfig | GenerationConfig) -> tuple[str, str]:
    """The section that chooses the engine, and the engine."""
    if isinstance(config, PPOConfig):
        return ROLLOUT, config.actor_rollout_ref.rollout.engine
    return "rollout", config.rollout.name
