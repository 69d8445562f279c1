"""From a configuration's sections to engines: the one place where training keys meet the training engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from hone.config.schema.fsdp import ForwardFsdpConfig, FsdpConfig, ShardingKeys
from hone.config.schema.model import LoraKeys
from hone.config.schema.optim import OptimizerKeys
from hone.config.schema.ppo import PPOConfig
from hone.models.heads import LogitMemory, logit_chunk
from hone.models.load import ModelSource, load_causal_lm, load_value_model, value_head_name
from hone.models.lora import Adapter, LoraSettings, attach
from hone.models.precision import DTYPES
from hone.models.ulysses import check_shareable
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.offload import OffloadOptions
from hone.training.optimizer import build_optimizer
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.own_reference import AsAtStart
from hone.training.schedule import Schedule, warmup_steps
from hone.training.sharding import Sharding, ShardOptions, shard
from hone.workers.settings import RunSettings

ENTROPY_CHUNK = 2048  # tokens whose entropy is computed at once from their logits
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
SEQUENCE_RANKS = "ulysses_sequence_parallel_size"


def actor_engine(config: PPOConfig, run: RunSettings, reference: TorchEngine | None) -> TorchEngine:
    """The policy with its optimiser, and the reference in this process if there is one."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model = load_causal_lm(policy_source(config, run))
    lora = lora_settings(config.actor_rollout_ref.model, "actor_rollout_ref.model")
    adapter = None if lora is None else attach(model, lora, keep_start=config.needs_reference)
    shared_by = actor.ulysses_sequence_parallel_size
    check_shareable(model, shared_by, f"{ACTOR}.{SEQUENCE_RANKS}")
    options = _policy_options(config, run, model, actor.fsdp_config, f"{ACTOR}.fsdp_config", shared_by)
    module, sharding = sharded(model, options, actor.strategy, actor.fsdp_config, f"{ACTOR}.fsdp_config")
    engine = TorchEngine(
        model,
        module=module,
        sharding=sharding,
        adapter=adapter,
        options=options,
        scoring=micro_batching(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
            packed=options.packed,
            sequence_ranks=options.sequence_ranks,
        ),
        train=micro_batching(
            actor.ppo_micro_batch_size_per_gpu,
            actor.use_dynamic_bsz,
            actor.ppo_max_token_len_per_gpu,
            f"{ACTOR}.ppo_max_token_len_per_gpu",
            packed=options.packed,
            sequence_ranks=options.sequence_ranks,
        ),
        optimizer=optimizer_of(module, actor.optim),
        schedule=schedule_of(actor.optim, actor.optim.lr_scheduler_type, run.total_steps),
        grad_clip=actor.grad_clip,
        reference=reference,
        offload=offload_of(actor.fsdp_config),
    )
    if adapter is not None and config.needs_reference:
        engine.reference = _own_reference(config, engine, adapter)
    return engine


def _own_reference(config: PPOConfig, policy: TorchEngine, adapter: Adapter) -> TorchEngine:
    """The policy as it was when the run began, in the policy's own model."""
    reference = TorchEngine(
        policy.model,
        module=AsAtStart(policy.module, adapter),
        sharding=policy.sharding,
        options=policy.options,
        scoring=_reference_batching(config, policy.options),
    )
    reference.offload = policy.offload  # the same tensors come and go
    return reference


def reference_engine(config: PPOConfig, run: RunSettings) -> TorchEngine:
    """The policy as it was when the run began; it only scores."""
    reference = config.actor_rollout_ref.ref
    dtype = DTYPES[reference.fsdp_config.model_dtype]
    model = load_causal_lm(replace(frozen_source(config, run), dtype=dtype)).requires_grad_(False)
    shared_by, section = reference.ulysses_sequence_parallel_size, f"{REF}.fsdp_config"
    check_shareable(model, shared_by, f"{REF}.{SEQUENCE_RANKS}")
    options = _policy_options(config, run, model, reference.fsdp_config, section, shared_by)
    module, sharding = sharded(model, options, reference.strategy, reference.fsdp_config, section)
    return TorchEngine(
        model,
        module=module,
        sharding=sharding,
        options=options,
        scoring=_reference_batching(config, options),
        offload=offload_of(reference.fsdp_config),
    )


def _reference_batching(config: PPOConfig, options: ForwardOptions) -> MicroBatching:
    reference = config.actor_rollout_ref.ref
    return micro_batching(
        reference.log_prob_micro_batch_size_per_gpu,
        reference.log_prob_use_dynamic_bsz,
        reference.log_prob_max_token_len_per_gpu,
        f"{REF}.log_prob_max_token_len_per_gpu",
        packed=options.packed,
        sequence_ranks=options.sequence_ranks,
    )


def critic_engine(config: PPOConfig, run: RunSettings) -> TorchEngine:
    """The value model with its optimiser."""
    critic = config.critic
    fsdp = critic.model.fsdp_config
    model = load_value_model(
        run.source(
            critic.model.path,
            critic.model.override_config,
            model_dtype=fsdp.model_dtype,
            trust_remote_code=critic.model.trust_remote_code,
            external_lib=critic.model.external_lib,
            gradient_checkpointing=critic.model.enable_gradient_checkpointing,
            packed=critic.model.use_remove_padding,
        )
    )
    check_shareable(model, critic.ulysses_sequence_parallel_size, f"critic.{SEQUENCE_RANKS}")
    lora = lora_settings(critic.model, "critic.model")
    adapter = None if lora is None else attach(model, lora, head=value_head_name(model))
    options = ForwardOptions(
        packed=critic.model.use_remove_padding,
        shared_prompts=critic.model.use_remove_padding and config.actor_rollout_ref.actor.use_prefix_grouper,
        offload=critic.model.enable_activation_offload,
        compute_dtype=compute_dtype_of(run, fsdp, "critic.model.fsdp_config"),
        sequence_ranks=critic.ulysses_sequence_parallel_size,
    )
    module, sharding = sharded(model, options, critic.strategy, fsdp, "critic.model.fsdp_config")
    return TorchEngine(
        model,
        module=module,
        sharding=sharding,
        adapter=adapter,
        options=options,
        scoring=micro_batching(
            critic.forward_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.forward_max_token_len_per_gpu,
            "critic.forward_max_token_len_per_gpu",
            packed=options.packed,
            sequence_ranks=options.sequence_ranks,
        ),
        train=micro_batching(
            critic.ppo_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.ppo_max_token_len_per_gpu,
            "critic.ppo_max_token_len_per_gpu",
            packed=options.packed,
            sequence_ranks=options.sequence_ranks,
        ),
        optimizer=optimizer_of(module, critic.optim),
        schedule=schedule_of(critic.optim, critic.optim.lr_scheduler_type, run.total_steps),
        grad_clip=critic.grad_clip,
        offload=offload_of(fsdp),
    )


def policy_source(config: PPOConfig, run: RunSettings) -> ModelSource:
    """Where the policy's weights come from."""
    policy, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    return run.source(
        policy.path,
        policy.override_config,
        model_dtype=actor.fsdp_config.model_dtype,
        trust_remote_code=policy.trust_remote_code,
        external_lib=policy.external_lib,
        gradient_checkpointing=policy.enable_gradient_checkpointing,
        packed=policy.use_remove_padding,
        liger=policy.use_liger,
    )


def frozen_source(config: PPOConfig, run: RunSettings) -> ModelSource:
    """The same for a model that no gradient reaches."""
    return replace(policy_source(config, run), gradient_checkpointing=False, freeze_router=False)


def sharded(
    model: PreTrainedModel, options: ForwardOptions, strategy: str, fsdp: ShardingKeys, section: str
) -> tuple[nn.Module, Sharding]:
    """The model's outputs as a module over all ranks, by the keys of an fsdp_config; whole where there is one rank."""
    wrap = fsdp.wrap_policy
    how = ShardOptions(
        strategy=strategy,
        shard_size=fsdp.fsdp_size,
        reshard_after_forward=fsdp.reshard_after_forward,
        forward_prefetch=fsdp.forward_prefetch,
        layer_classes=tuple(wrap.transformer_layer_cls_to_wrap or ()),
        min_num_params=wrap.min_num_params,
        param_dtype=options.compute_dtype,
        reduce_dtype=DTYPES[fsdp.mixed_precision.reduce_dtype],
        cpu_policy=isinstance(fsdp, FsdpConfig) and fsdp.offload_policy,
        section=section,
    )
    return shard(OutputModule(model, options), model, how, next(model.parameters()).device)


def offload_of(fsdp: ForwardFsdpConfig) -> OffloadOptions:
    """offload_policy leaves nothing to do: it keeps all of it in CPU memory already."""
    if isinstance(fsdp, FsdpConfig):
        return OffloadOptions() if fsdp.offload_policy else OffloadOptions(fsdp.param_offload, fsdp.optimizer_offload)
    return OffloadOptions(fsdp.param_offload)


def compute_dtype_of(run: RunSettings, fsdp: ShardingKeys, section: str) -> torch.dtype:
    return run.compute_dtype(
        fsdp.mixed_precision.param_dtype,
        f"{section}.mixed_precision.param_dtype",
        weights=fsdp.model_dtype,
        weights_key=f"{section}.model_dtype",
    )


def _policy_options(
    config: PPOConfig,
    run: RunSettings,
    model: PreTrainedModel,
    fsdp: ShardingKeys,
    section: str,
    sequence_ranks: int,
) -> ForwardOptions:
    policy = config.actor_rollout_ref.model
    return ForwardOptions(
        packed=policy.use_remove_padding,
        shared_prompts=config.actor_rollout_ref.actor.use_prefix_grouper,
        temperature=config.actor_rollout_ref.rollout.temperature,
        memory=_logit_memory(config, model),
        offload=policy.enable_activation_offload,
        compiled=config.actor_rollout_ref.actor.use_torch_compile and run.device.type == "cuda",
        compute_dtype=compute_dtype_of(run, fsdp, section),
        sequence_ranks=sequence_ranks,
    )


def _logit_memory(config: PPOConfig, model: PreTrainedModel) -> LogitMemory:
    actor = config.actor_rollout_ref.actor
    return LogitMemory(
        chunk=fused_chunk(model) if config.actor_rollout_ref.model.use_fused_kernels else None,
        entropy_chunk=ENTROPY_CHUNK if actor.entropy_from_logits_with_chunking else None,
        recompute_entropy=actor.entropy_checkpointing,
    )


def fused_chunk(model: PreTrainedModel) -> int:
    return logit_chunk(model.config.get_text_config().vocab_size)


def lora_settings(keys: LoraKeys, section: str) -> LoraSettings | None:
    """The adapter that a model section asks for."""
    if not keys.trains_adapter:
        return None
    return LoraSettings(
        rank=keys.lora_rank,
        alpha=keys.lora_alpha,
        targets=keys.target_modules,
        excluded=getattr(keys, "exclude_modules", None),
        path=getattr(keys, "lora_adapter_path", None),
        section=section,
    )


def micro_batching(
    size: int, dynamic: bool, max_tokens: int, key: str, *, packed: bool, sequence_ranks: int = 1
) -> MicroBatching:
    return MicroBatching(
        size=size,
        max_tokens=max_tokens if dynamic else None,
        padded=not packed,
        key=key,
        sequence_ranks=sequence_ranks,
    )


def optimizer_of(model: nn.Module, optim: OptimizerKeys) -> torch.optim.Optimizer:
    return build_optimizer(
        model.parameters(),
        name=optim.optimizer,
        module=optim.optimizer_impl,
        lr=optim.lr,
        betas=(optim.betas[0], optim.betas[1]),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        overrides=optim.override_optimizer_config,
    )


def schedule_of(optim: OptimizerKeys, kind: str, total_steps: int) -> Schedule:
    return Schedule(
        kind=kind,
        total_steps=total_steps,
        warmup_steps=warmup_steps(optim.lr_warmup_steps, optim.lr_warmup_steps_ratio, total_steps),
        min_ratio=optim.min_lr_ratio,
        num_cycles=optim.num_cycles,
    )
