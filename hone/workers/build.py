"""From a configuration's sections to engines: the one place where training keys meet the training engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from hone.config.schema.fsdp import ShardingKeys
from hone.config.schema.optim import OptimizerKeys
from hone.config.schema.ppo import PPOConfig
from hone.models.load import ModelSource, load_causal_lm, load_value_model
from hone.models.precision import DTYPES
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.optimizer import build_optimizer
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.schedule import Schedule, warmup_steps
from hone.training.sharding import Sharding, ShardOptions, shard
from hone.workers.settings import RunSettings

LOGIT_CHUNK = 1024  # tokens whose logits exist at once with fused kernels
ACTOR = "actor_rollout_ref.actor"


def actor_engine(config: PPOConfig, run: RunSettings, reference: TorchEngine | None) -> TorchEngine:
    """The policy with its optimiser, and the reference in this process if there is one."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    model = load_causal_lm(policy_source(config, run))
    options = _policy_options(config, run, actor.fsdp_config, f"{ACTOR}.fsdp_config")
    module, sharding = sharded(model, options, actor.strategy, actor.fsdp_config, f"{ACTOR}.fsdp_config")
    return TorchEngine(
        model,
        module=module,
        sharding=sharding,
        options=options,
        scoring=micro_batching(
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
            packed=options.packed,
        ),
        train=micro_batching(
            actor.ppo_micro_batch_size_per_gpu,
            actor.use_dynamic_bsz,
            actor.ppo_max_token_len_per_gpu,
            f"{ACTOR}.ppo_max_token_len_per_gpu",
            packed=options.packed,
        ),
        optimizer=optimizer_of(module, actor.optim),
        schedule=schedule_of(actor.optim, actor.optim.lr_scheduler_type, run.total_steps),
        grad_clip=actor.grad_clip,
        reference=reference,
    )


def reference_engine(config: PPOConfig, run: RunSettings) -> TorchEngine:
    """The policy as it was when the run began; it only scores."""
    reference = config.actor_rollout_ref.ref
    dtype = DTYPES[reference.fsdp_config.model_dtype]
    model = load_causal_lm(replace(frozen_source(config, run), dtype=dtype)).requires_grad_(False)
    section = "actor_rollout_ref.ref.fsdp_config"
    options = _policy_options(config, run, reference.fsdp_config, section)
    module, sharding = sharded(model, options, reference.strategy, reference.fsdp_config, section)
    return TorchEngine(
        model,
        module=module,
        sharding=sharding,
        options=options,
        scoring=micro_batching(
            reference.log_prob_micro_batch_size_per_gpu,
            reference.log_prob_use_dynamic_bsz,
            reference.log_prob_max_token_len_per_gpu,
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
            packed=options.packed,
        ),
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
    options = ForwardOptions(
        packed=critic.model.use_remove_padding,
        shared_prompts=critic.model.use_remove_padding and config.actor_rollout_ref.actor.use_prefix_grouper,
        compute_dtype=compute_dtype_of(run, fsdp, "critic.model.fsdp_config"),
    )
    module, sharding = sharded(model, options, critic.strategy, fsdp, "critic.model.fsdp_config")
    return TorchEngine(
        model,
        module=module,
        sharding=sharding,
        options=options,
        scoring=micro_batching(
            critic.forward_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.forward_max_token_len_per_gpu,
            "critic.forward_max_token_len_per_gpu",
            packed=options.packed,
        ),
        train=micro_batching(
            critic.ppo_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.ppo_max_token_len_per_gpu,
            "critic.ppo_max_token_len_per_gpu",
            packed=options.packed,
        ),
        optimizer=optimizer_of(module, critic.optim),
        schedule=schedule_of(critic.optim, critic.optim.lr_scheduler_type, run.total_steps),
        grad_clip=critic.grad_clip,
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
    )


def frozen_source(config: PPOConfig, run: RunSettings) -> ModelSource:
    """The same for a model that no gradient reaches."""
    return replace(policy_source(config, run), gradient_checkpointing=False)


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
        section=section,
    )
    return shard(OutputModule(model, options), model, how, next(model.parameters()).device)


def compute_dtype_of(run: RunSettings, fsdp: ShardingKeys, section: str) -> torch.dtype:
    return run.compute_dtype(
        fsdp.mixed_precision.param_dtype,
        f"{section}.mixed_precision.param_dtype",
        weights=fsdp.model_dtype,
        weights_key=f"{section}.model_dtype",
    )


def _policy_options(config: PPOConfig, run: RunSettings, fsdp: ShardingKeys, section: str) -> ForwardOptions:
    policy = config.actor_rollout_ref.model
    return ForwardOptions(
        packed=policy.use_remove_padding,
        shared_prompts=config.actor_rollout_ref.actor.use_prefix_grouper,
        temperature=config.actor_rollout_ref.rollout.temperature,
        chunk=LOGIT_CHUNK if policy.use_fused_kernels else None,
        compiled=config.actor_rollout_ref.actor.use_torch_compile and run.device.type == "cuda",
        compute_dtype=compute_dtype_of(run, fsdp, section),
    )


def micro_batching(size: int, dynamic: bool, max_tokens: int, key: str, *, packed: bool) -> MicroBatching:
    return MicroBatching(size=size, max_tokens=max_tokens if dynamic else None, padded=not packed, key=key)


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
