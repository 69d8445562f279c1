"""From a configuration's roles to engines, by way of their recipes: policy, reference and critic."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedModel

from hone.config.schema.fsdp import ShardingKeys
from hone.config.schema.ppo import PPOConfig
from hone.models.heads import LogitMemory
from hone.models.load import ModelSource, load_causal_lm, load_value_model, value_head_name
from hone.models.lora import Adapter, attach
from hone.models.precision import DTYPES
from hone.models.ulysses import check_shareable
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions
from hone.training.own_reference import AsAtStart
from hone.workers.engine_parts import (
    SEQUENCE_RANKS,
    compute_dtype_of,
    fused_chunk,
    lora_settings,
    micro_batching,
    offload_of,
    shard_options,
)
from hone.workers.recipe import EngineRecipe, Training
from hone.workers.settings import RunSettings

ENTROPY_CHUNK = 2048  # tokens whose entropy is computed at once from their logits
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"


def actor_engine(config: PPOConfig, run: RunSettings, reference: TorchEngine | None) -> TorchEngine:
    """The policy with its optimiser, and the reference in this process if there is one."""
    recipe = actor_recipe(config, run)
    engine = recipe.engine(run.total_steps, reference)
    if recipe.adapter is not None and config.needs_reference:
        engine.reference = _own_reference(config, engine, recipe.adapter)
    return engine


def actor_recipe(config: PPOConfig, run: RunSettings) -> EngineRecipe:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model = load_causal_lm(policy_source(config, run))
    lora = lora_settings(config.actor_rollout_ref.model, "actor_rollout_ref.model")
    adapter = None if lora is None else attach(model, lora, keep_start=config.needs_reference)
    shared_by, section = actor.ulysses_sequence_parallel_size, f"{ACTOR}.fsdp_config"
    check_shareable(model, shared_by, f"{ACTOR}.{SEQUENCE_RANKS}")
    options = _policy_options(config, run, model, actor.fsdp_config, section, shared_by)
    train = micro_batching(
        actor.ppo_micro_batch_size_per_gpu,
        actor.use_dynamic_bsz,
        actor.ppo_max_token_len_per_gpu,
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        packed=options.packed,
        sequence_ranks=options.sequence_ranks,
    )
    return EngineRecipe(
        model,
        options=options,
        sharding=shard_options(options, actor.strategy, actor.fsdp_config, section),
        adapter=adapter,
        scoring=micro_batching(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
            packed=options.packed,
            sequence_ranks=options.sequence_ranks,
        ),
        training=Training(train, actor.optim, actor.optim.lr_scheduler_type, actor.grad_clip),
        offload=offload_of(actor.fsdp_config),
    )


def _own_reference(config: PPOConfig, policy: TorchEngine, adapter: Adapter) -> TorchEngine:
    """The policy as it was when the run began, in the policy's own model."""
    reference = TorchEngine(
        policy.model,
        module=AsAtStart(policy.module, adapter),
        sharding=policy.sharding,
        options=policy.options,
        scoring=reference_batching(config, policy.options),
    )
    reference.offload = policy.offload  # the same tensors come and go
    return reference


def reference_engine(config: PPOConfig, run: RunSettings) -> TorchEngine:
    """The policy as it was when the run began; it only scores."""
    return reference_recipe(config, run).engine()


def reference_recipe(config: PPOConfig, run: RunSettings) -> EngineRecipe:
    reference = config.actor_rollout_ref.ref
    dtype = DTYPES[reference.fsdp_config.model_dtype]
    model = load_causal_lm(replace(frozen_source(config, run), dtype=dtype)).requires_grad_(False)
    shared_by, section = reference.ulysses_sequence_parallel_size, f"{REF}.fsdp_config"
    check_shareable(model, shared_by, f"{REF}.{SEQUENCE_RANKS}")
    options = _policy_options(config, run, model, reference.fsdp_config, section, shared_by)
    return EngineRecipe(
        model,
        options=options,
        sharding=shard_options(options, reference.strategy, reference.fsdp_config, section),
        scoring=reference_batching(config, options),
        offload=offload_of(reference.fsdp_config),
    )


def reference_batching(config: PPOConfig, options: ForwardOptions) -> MicroBatching:
    """Micro-batches of the reference's passes."""
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
    return critic_recipe(config, run).engine(run.total_steps)


def critic_recipe(config: PPOConfig, run: RunSettings) -> EngineRecipe:
    critic = config.critic
    fsdp, section = critic.model.fsdp_config, "critic.model.fsdp_config"
    model = load_value_model(critic_source(config, run))
    check_shareable(model, critic.ulysses_sequence_parallel_size, f"critic.{SEQUENCE_RANKS}")
    lora = lora_settings(critic.model, "critic.model")
    adapter = None if lora is None else attach(model, lora, head=value_head_name(model))
    options = ForwardOptions(
        packed=critic.model.use_remove_padding,
        shared_prompts=critic.model.use_remove_padding and config.actor_rollout_ref.actor.use_prefix_grouper,
        offload=critic.model.enable_activation_offload,
        compute_dtype=compute_dtype_of(run, fsdp, section),
        sequence_ranks=critic.ulysses_sequence_parallel_size,
    )
    train = micro_batching(
        critic.ppo_micro_batch_size_per_gpu,
        critic.use_dynamic_bsz,
        critic.ppo_max_token_len_per_gpu,
        "critic.ppo_max_token_len_per_gpu",
        packed=options.packed,
        sequence_ranks=options.sequence_ranks,
    )
    return EngineRecipe(
        model,
        options=options,
        sharding=shard_options(options, critic.strategy, fsdp, section),
        adapter=adapter,
        scoring=micro_batching(
            critic.forward_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.forward_max_token_len_per_gpu,
            "critic.forward_max_token_len_per_gpu",
            packed=options.packed,
            sequence_ranks=options.sequence_ranks,
        ),
        training=Training(train, critic.optim, critic.optim.lr_scheduler_type, critic.grad_clip),
        offload=offload_of(fsdp),
    )


def critic_source(config: PPOConfig, run: RunSettings) -> ModelSource:
    """Where the value model's weights come from."""
    wanted = config.critic.model
    return run.source(
        wanted.path,
        wanted.override_config,
        model_dtype=wanted.fsdp_config.model_dtype,
        trust_remote_code=wanted.trust_remote_code,
        external_lib=wanted.external_lib,
        gradient_checkpointing=wanted.enable_gradient_checkpointing,
        packed=wanted.use_remove_padding,
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
