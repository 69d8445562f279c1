"""From a configuration's keys to the arguments of the engines that are packages of their own."""

from __future__ import annotations

import torch

from hone.config.engines import own_arguments
from hone.config.schema.generation import GenerationConfig, GenerationRolloutConfig
from hone.config.schema.ppo import PPOConfig
from hone.config.schema.rollout import RolloutConfig
from hone.models.load import ModelSource
from hone.rollout.sglang.arguments import EngineArguments as SGLangArguments
from hone.rollout.sglang.arguments import sglang_load_format
from hone.rollout.vllm.arguments import EngineArguments, vllm_load_format
from hone.training.ranks import Ranks
from hone.workers.build import policy_source
from hone.workers.settings import RunSettings


def rollout_keys(config: PPOConfig | GenerationConfig) -> RolloutConfig | GenerationRolloutConfig:
    return config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout


def vllm_training_arguments(config: PPOConfig, run: RunSettings, dtype: torch.dtype) -> EngineArguments:
    rollout, source = config.actor_rollout_ref.rollout, policy_source(config, run)
    return EngineArguments(
        model=source.location,
        dtype=str(dtype).removeprefix("torch."),
        seed=run.seed,
        max_model_len=longest(config),
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=_tokens_of_a_pass(rollout.max_num_batched_tokens, config, run.device),
        enable_sleep_mode=rollout.free_cache_engine and run.device.type == "cuda",
        hf_overrides=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        load_format=vllm_load_format(rollout.load_format),
        gpu_memory_utilization=_share_of_memory(rollout.gpu_memory_utilization, config, run.device),
        enforce_eager=rollout.enforce_eager,
        enable_chunked_prefill=rollout.enable_chunked_prefill and run.device.type != "cpu",
        tensor_parallel_size=rollout.tensor_model_parallel_size,
        disable_log_stats=rollout.disable_log_stats,
        more=rollout.engine_kwargs.vllm,
    )


def vllm_generation_arguments(config: GenerationConfig, run: RunSettings, source: ModelSource) -> EngineArguments:
    rollout = config.rollout
    return EngineArguments(
        model=source.location,
        dtype=str(source.dtype).removeprefix("torch."),
        seed=run.seed,
        max_model_len=longest(config),
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=_tokens_of_a_pass(rollout.max_num_batched_tokens, config, run.device),
        enable_sleep_mode=False,
        hf_overrides=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        gpu_memory_utilization=_share_of_memory(rollout.gpu_memory_utilization, config, run.device),
        enforce_eager=rollout.enforce_eager,
        enable_chunked_prefill=False if run.device.type == "cpu" else None,
        tensor_parallel_size=rollout.tensor_model_parallel_size,
    )


def _share_of_memory(wanted: float, config: PPOConfig | GenerationConfig, device: torch.device) -> float:
    """For one rank of its device's memory; on a CPU a machine's ranks have one memory."""
    return wanted / config.trainer.n_gpus_per_node if device.type == "cpu" else wanted


def sglang_training_arguments(config: PPOConfig, run: RunSettings, dtype: torch.dtype) -> SGLangArguments:
    rollout, source = config.actor_rollout_ref.rollout, policy_source(config, run)
    return SGLangArguments(
        model_path=source.location,
        tokenizer_path=config.data.tokenizer or source.location,
        device=run.device.type,
        dtype=str(dtype).removeprefix("torch."),
        random_seed=run.seed + Ranks().rank,  # of one stream of numbers, in which no two ranks may be alike
        max_model_len=longest(config),
        max_running_requests=rollout.max_num_seqs,
        max_tokens_at_once=rollout.max_num_batched_tokens,
        enable_memory_saver=rollout.free_cache_engine and run.device.type == "cuda",
        json_model_override_args=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        load_format=sglang_load_format(rollout.load_format),
        mem_fraction_static=_share_of_memory(rollout.gpu_memory_utilization, config, run.device),
        disable_cuda_graph=rollout.enforce_eager,
        split_prompts=rollout.enable_chunked_prefill,
        tp_size=rollout.tensor_model_parallel_size,
        quiet=rollout.disable_log_stats,
        more=own_arguments(config),
    )


def sglang_generation_arguments(config: GenerationConfig, run: RunSettings, source: ModelSource) -> SGLangArguments:
    rollout = config.rollout
    return SGLangArguments(
        model_path=source.location,
        tokenizer_path=source.location,
        device=run.device.type,
        dtype=str(source.dtype).removeprefix("torch."),
        random_seed=run.seed + Ranks().rank,  # of one stream of numbers, in which no two ranks may be alike
        max_model_len=longest(config),
        max_running_requests=rollout.max_num_seqs,
        max_tokens_at_once=rollout.max_num_batched_tokens,
        enable_memory_saver=False,
        json_model_override_args=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        mem_fraction_static=_share_of_memory(rollout.gpu_memory_utilization, config, run.device),
        disable_cuda_graph=rollout.enforce_eager,
    )


def _tokens_of_a_pass(wanted: int, config: PPOConfig | GenerationConfig, device: torch.device) -> int:
    """On a CPU no prompt may be split over passes: vLLM then takes back random numbers that it drew for a request with
    a seed, which the generators of GPUs can and a CPU's cannot, and its engine ends."""
    return max(wanted, longest(config)) if device.type == "cpu" else wanted


def longest(config: PPOConfig | GenerationConfig) -> int:
    """Tokens of the longest prompt and response together."""
    rollout = rollout_keys(config)
    return rollout.max_model_len or rollout.prompt_length + rollout.response_length
