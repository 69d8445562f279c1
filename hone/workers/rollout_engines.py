"""The engine that a configuration names, for a run that trains and for `hone generate`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from transformers import GenerationConfig as SamplingDefaults
from transformers import PretrainedConfig, PreTrainedModel

from hone.config.schema.generation import GenerationConfig, GenerationRolloutConfig
from hone.config.schema.ppo import PPOConfig
from hone.config.schema.rollout import RolloutConfig
from hone.models.load import ModelSource, load_causal_lm, load_config
from hone.rollout.hf import HFEngine
from hone.rollout.interface import RolloutEngine
from hone.rollout.vllm.arguments import EngineArguments, vllm_load_format
from hone.training.engine import TorchEngine
from hone.workers.build import frozen_source, policy_source
from hone.workers.engine_groups import EngineElsewhere, EngineGroup
from hone.workers.settings import RunSettings


@dataclass(frozen=True)
class ModelFacts:
    """What is asked of a model that is in another process; a transformers model answers the same."""

    config: PretrainedConfig
    generation_config: SamplingDefaults

    @classmethod
    def of(cls, source: ModelSource) -> ModelFacts:
        config = load_config(source)
        try:
            return cls(config, SamplingDefaults.from_pretrained(source.location))
        except OSError:  # a model need not have one
            return cls(config, SamplingDefaults.from_model_config(config))


def ranks_per_engine(config: PPOConfig | GenerationConfig) -> int:
    rollout = _rollout(config)
    return 1 if rollout.name == "hf" else rollout.tensor_model_parallel_size


def shares_weights(config: PPOConfig, trainer: TorchEngine) -> bool:
    """Whether the engine generates with the trainer's own tensors: only hone's can, and only where they are whole."""
    return config.actor_rollout_ref.rollout.name == "hf" and trainer.sharding.whole


def engine_dtype(config: PPOConfig, run: RunSettings, trainer: TorchEngine) -> torch.dtype:
    """In which the engine of a training run computes. hone's own does as the trainer; `auto` is that too."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "hf" or rollout.dtype == "auto":
        return trainer.options.compute_dtype
    return run.compute_dtype(rollout.dtype, "actor_rollout_ref.rollout.dtype")


def training_engine(
    config: PPOConfig, run: RunSettings, trainer: TorchEngine, eos_token_ids: Collection[int]
) -> RolloutEngine:
    if config.actor_rollout_ref.rollout.name == "hf":
        shares = shares_weights(config, trainer)
        model = trainer.model if shares else load_causal_lm(frozen_source(config, run)).requires_grad_(False)
        return _hf(config, model, eos_token_ids, trainer.options.compute_dtype)
    group = EngineGroup.of(ranks_per_engine(config), run.device)
    return _vllm(vllm_training_arguments(config, run, engine_dtype(config, run, trainer)), eos_token_ids, group)


def generation_engine(
    config: GenerationConfig,
    source: ModelSource,
    model: PreTrainedModel | ModelFacts,
    run: RunSettings,
    eos_token_ids: Collection[int],
) -> RolloutEngine:
    """`source.dtype` is the format to compute in."""
    if isinstance(model, PreTrainedModel):
        return _hf(config, model, eos_token_ids, source.dtype)
    group = EngineGroup.of(ranks_per_engine(config), run.device)
    return _vllm(vllm_generation_arguments(config, run, source), eos_token_ids, group)


def vllm_training_arguments(config: PPOConfig, run: RunSettings, dtype: torch.dtype) -> EngineArguments:
    rollout, source = config.actor_rollout_ref.rollout, policy_source(config, run)
    return EngineArguments(
        model=source.location,
        dtype=str(dtype).removeprefix("torch."),
        seed=run.seed,
        max_model_len=longest(config),
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=_tokens_of_a_pass(config, run.device),
        enable_sleep_mode=rollout.free_cache_engine and run.device.type == "cuda",
        hf_overrides=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        load_format=vllm_load_format(rollout.load_format),
        gpu_memory_utilization=_share_of_memory(config, run.device),
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
        max_num_batched_tokens=_tokens_of_a_pass(config, run.device),
        enable_sleep_mode=False,
        hf_overrides=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        gpu_memory_utilization=_share_of_memory(config, run.device),
        enforce_eager=rollout.enforce_eager,
        enable_chunked_prefill=False if run.device.type == "cpu" else None,
        tensor_parallel_size=rollout.tensor_model_parallel_size,
    )


def _share_of_memory(config: PPOConfig | GenerationConfig, device: torch.device) -> float:
    """For one rank of its device's memory; on a CPU a machine's ranks have one memory."""
    sharing = config.trainer.n_gpus_per_node if device.type == "cpu" else 1
    return _rollout(config).gpu_memory_utilization / sharing


def _tokens_of_a_pass(config: PPOConfig | GenerationConfig, device: torch.device) -> int:
    """On a CPU no prompt may be split over passes: vLLM then takes back random numbers that it drew for a request with
    a seed, which the generators of GPUs can and a CPU's cannot, and its engine ends."""
    tokens = _rollout(config).max_num_batched_tokens
    return max(tokens, longest(config)) if device.type == "cpu" else tokens


def longest(config: PPOConfig | GenerationConfig) -> int:
    """Tokens of the longest prompt and response together."""
    rollout = _rollout(config)
    return rollout.max_model_len or rollout.prompt_length + rollout.response_length


def _hf(
    config: PPOConfig | GenerationConfig, model: PreTrainedModel, eos_token_ids: Collection[int], dtype: torch.dtype
) -> HFEngine:
    rollout = _rollout(config)
    return HFEngine(
        model,
        eos_token_ids=eos_token_ids,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        max_model_len=longest(config),
        compute_dtype=dtype,
    )


def _vllm(arguments: EngineArguments, eos_token_ids: Collection[int], group: EngineGroup) -> RolloutEngine:
    if not group.drives:
        return EngineElsewhere()
    from hone.rollout.vllm.engine import VLLMEngine

    return VLLMEngine(arguments, eos_token_ids=eos_token_ids, devices=group.devices)


def _rollout(config: PPOConfig | GenerationConfig) -> RolloutConfig | GenerationRolloutConfig:
    return config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout
