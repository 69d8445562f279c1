"""The engine that a configuration names, for a run that trains and for `hone generate`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from transformers import GenerationConfig as SamplingDefaults
from transformers import PretrainedConfig, PreTrainedModel

from hone.config.engines import own_arguments
from hone.config.schema.generation import GenerationConfig
from hone.config.schema.ppo import PPOConfig
from hone.models.load import ModelSource, load_causal_lm, load_config, load_tokenizer
from hone.rollout.custom import CustomServer, ServerSettings
from hone.rollout.hf import HFEngine
from hone.rollout.interface import RolloutEngine
from hone.rollout.sglang.arguments import EngineArguments as SGLangArguments
from hone.rollout.sglang.arguments import sglang_load_format
from hone.rollout.vllm.arguments import EngineArguments, vllm_load_format
from hone.training.engine import TorchEngine
from hone.training.ranks import Ranks
from hone.workers.build import frozen_source, policy_source
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


def shares_weights(config: PPOConfig, trainer: TorchEngine) -> bool:
    """Whether the engine generates with the trainer's own tensors: only hone's can, and only where they are whole."""
    return config.actor_rollout_ref.rollout.engine == "hf" and trainer.sharding.whole


def engine_dtype(config: PPOConfig, run: RunSettings, trainer: TorchEngine) -> torch.dtype:
    """In which the engine of a training run computes. hone's own does as the trainer; `auto` is that too."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.engine == "hf" or rollout.dtype == "auto":
        return trainer.options.compute_dtype
    return run.compute_dtype(rollout.dtype, "actor_rollout_ref.rollout.dtype")


def training_engine(
    config: PPOConfig, run: RunSettings, trainer: TorchEngine, eos_token_ids: Collection[int]
) -> RolloutEngine:
    kind = config.actor_rollout_ref.rollout.engine
    if kind == "hf":
        shares = shares_weights(config, trainer)
        model = trainer.model if shares else load_causal_lm(frozen_source(config, run)).requires_grad_(False)
        return _hf(config, model, eos_token_ids, trainer.options.compute_dtype)
    dtype = engine_dtype(config, run, trainer)
    if kind == "custom":
        return _custom(config, run, trainer, eos_token_ids, dtype)
    if kind == "sglang":
        return _sglang(sglang_training_arguments(config, run, dtype), eos_token_ids)
    return _vllm(vllm_training_arguments(config, run, dtype), eos_token_ids)


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
    if config.rollout.name == "sglang":
        return _sglang(sglang_generation_arguments(config, run, source), eos_token_ids)
    return _vllm(vllm_generation_arguments(config, run, source), eos_token_ids)


def vllm_training_arguments(config: PPOConfig, run: RunSettings, dtype: torch.dtype) -> EngineArguments:
    rollout, source = config.actor_rollout_ref.rollout, policy_source(config, run)
    return EngineArguments(
        model=source.location,
        dtype=str(dtype).removeprefix("torch."),
        seed=run.seed,
        max_model_len=longest(config),
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        enable_sleep_mode=rollout.free_cache_engine and run.device.type == "cuda",
        hf_overrides=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        load_format=vllm_load_format(rollout.load_format),
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        enforce_eager=rollout.enforce_eager,
        enable_chunked_prefill=rollout.enable_chunked_prefill,
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
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        enable_sleep_mode=False,
        hf_overrides=source.config_overrides,
        trust_remote_code=source.trust_remote_code,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        enforce_eager=rollout.enforce_eager,
    )


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
        mem_fraction_static=rollout.gpu_memory_utilization,
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
        mem_fraction_static=rollout.gpu_memory_utilization,
        disable_cuda_graph=rollout.enforce_eager,
    )


def longest(config: PPOConfig | GenerationConfig) -> int:
    """Tokens of the longest prompt and response together."""
    rollout = config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout
    return rollout.max_model_len or rollout.prompt_length + rollout.response_length


def _hf(
    config: PPOConfig | GenerationConfig, model: PreTrainedModel, eos_token_ids: Collection[int], dtype: torch.dtype
) -> HFEngine:
    rollout = config.actor_rollout_ref.rollout if isinstance(config, PPOConfig) else config.rollout
    return HFEngine(
        model,
        eos_token_ids=eos_token_ids,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        max_model_len=longest(config),
        compute_dtype=dtype,
    )


def _vllm(arguments: EngineArguments, eos_token_ids: Collection[int]) -> RolloutEngine:
    from hone.rollout.vllm.engine import VLLMEngine

    return VLLMEngine(arguments, eos_token_ids=eos_token_ids)


def _sglang(arguments: SGLangArguments, eos_token_ids: Collection[int]) -> RolloutEngine:
    from hone.rollout.sglang.engine import SGLangEngine

    return SGLangEngine(arguments, eos_token_ids=eos_token_ids)


def _custom(
    config: PPOConfig, run: RunSettings, trainer: TorchEngine, eos_token_ids: Collection[int], dtype: torch.dtype
) -> RolloutEngine:
    rollout, source = config.actor_rollout_ref.rollout, policy_source(config, run)
    own = rollout.agent.custom_async_server
    assert own.path is not None and own.name is not None  # one is refused without the other
    tokenizer = load_tokenizer(
        config.data.tokenizer or source.location, trust_remote_code=config.data.trust_remote_code
    )
    settings = ServerSettings(
        model_path=source.location,
        tokenizer=tokenizer,
        vocabulary=int(trainer.model.config.get_text_config().vocab_size),
        eos_token_ids=frozenset(eos_token_ids),
        max_model_len=longest(config),
        dtype=dtype,
        device=run.device,
        seed=run.seed,
        rollout=rollout,
        rank=trainer.ranks.rank,
        ranks=trainer.ranks.size,
    )
    return CustomServer(own.path, own.name, settings)
