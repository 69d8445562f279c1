"""The engine that a configuration names, for a run that trains and for `hone generate`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from transformers import GenerationConfig as SamplingDefaults
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hone.config.schema.generation import GenerationConfig
from hone.config.schema.ppo import PPOConfig
from hone.config.schema.rollout import RolloutConfig
from hone.models.load import ModelSource, load_causal_lm, load_config
from hone.rollout.custom import CustomServer, ServerSettings
from hone.rollout.hf import HFEngine
from hone.rollout.interface import RolloutEngine
from hone.rollout.sglang.arguments import EngineArguments as SGLangArguments
from hone.rollout.vllm.arguments import EngineArguments
from hone.training.engine import TorchEngine
from hone.workers.build import frozen_source, policy_source
from hone.workers.engine_arguments import (
    longest,
    rollout_keys,
    sglang_generation_arguments,
    sglang_training_arguments,
    vllm_generation_arguments,
    vllm_training_arguments,
)
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
    rollout = rollout_keys(config)
    packaged = config.rollout.name if isinstance(config, GenerationConfig) else config.actor_rollout_ref.rollout.engine
    return rollout.tensor_model_parallel_size if packaged in ("vllm", "sglang") else 1


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
    config: PPOConfig,
    run: RunSettings,
    trainer: TorchEngine,
    eos_token_ids: Collection[int],
    tokenizer: PreTrainedTokenizerBase,
) -> RolloutEngine:
    kind = config.actor_rollout_ref.rollout.engine
    if kind == "hf":
        shares = shares_weights(config, trainer)
        model = trainer.model if shares else load_causal_lm(frozen_source(config, run)).requires_grad_(False)
        return _hf(config, model, eos_token_ids, tokenizer, trainer.options.compute_dtype)
    dtype = engine_dtype(config, run, trainer)
    if kind == "custom":
        return _custom(config, run, trainer, eos_token_ids, tokenizer, dtype)
    group = EngineGroup.of(ranks_per_engine(config), run.device)
    if kind == "sglang":
        return _sglang(sglang_training_arguments(config, run, dtype), eos_token_ids, group)
    return _vllm(vllm_training_arguments(config, run, dtype), eos_token_ids, tokenizer, group)


def generation_engine(
    config: GenerationConfig,
    source: ModelSource,
    model: PreTrainedModel | ModelFacts,
    run: RunSettings,
    eos_token_ids: Collection[int],
    tokenizer: PreTrainedTokenizerBase,
) -> RolloutEngine:
    """`source.dtype` is the format to compute in."""
    if isinstance(model, PreTrainedModel):
        return _hf(config, model, eos_token_ids, tokenizer, source.dtype)
    group = EngineGroup.of(ranks_per_engine(config), run.device)
    if config.rollout.name == "sglang":
        return _sglang(sglang_generation_arguments(config, run, source), eos_token_ids, group)
    return _vllm(vllm_generation_arguments(config, run, source), eos_token_ids, tokenizer, group)


def _hf(
    config: PPOConfig | GenerationConfig,
    model: PreTrainedModel,
    eos_token_ids: Collection[int],
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> HFEngine:
    rollout = rollout_keys(config)
    return HFEngine(
        model,
        eos_token_ids=eos_token_ids,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        max_model_len=longest(config),
        enable_chunked_prefill=rollout.enable_chunked_prefill if isinstance(rollout, RolloutConfig) else True,
        compute_dtype=dtype,
        tokenizer=tokenizer,
    )


def _vllm(
    arguments: EngineArguments,
    eos_token_ids: Collection[int],
    tokenizer: PreTrainedTokenizerBase,
    group: EngineGroup,
) -> RolloutEngine:
    if not group.drives:
        return EngineElsewhere()
    from hone.rollout.vllm.engine import VLLMEngine

    return VLLMEngine(arguments, eos_token_ids=eos_token_ids, tokenizer=tokenizer, devices=group.devices)


def _sglang(arguments: SGLangArguments, eos_token_ids: Collection[int], group: EngineGroup) -> RolloutEngine:
    if not group.drives:
        return EngineElsewhere()
    from hone.rollout.sglang.engine import SGLangEngine

    return SGLangEngine(arguments, eos_token_ids=eos_token_ids, devices=group.devices)


def _custom(
    config: PPOConfig,
    run: RunSettings,
    trainer: TorchEngine,
    eos_token_ids: Collection[int],
    tokenizer: PreTrainedTokenizerBase,
    dtype: torch.dtype,
) -> RolloutEngine:
    rollout = config.actor_rollout_ref.rollout
    own = rollout.agent.custom_async_server
    assert own.path is not None and own.name is not None  # one is refused without the other
    settings = ServerSettings(
        model_path=policy_source(config, run).location,
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
