"""The parts of an engine from the sections of a configuration that all engines share: sharding, formats, optimisers."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from hone.config.schema.fsdp import ForwardFsdpConfig, FsdpConfig, ShardingKeys
from hone.config.schema.model import LoraKeys
from hone.config.schema.optim import OptimizerKeys
from hone.models.heads import logit_chunk
from hone.models.lora import LoraSettings
from hone.models.precision import DTYPES
from hone.training.micro_batches import MicroBatching
from hone.training.offload import OffloadOptions
from hone.training.optimizer import build_optimizer
from hone.training.outputs import ForwardOptions
from hone.training.schedule import Schedule, warmup_steps
from hone.training.sharding import ShardOptions
from hone.workers.settings import RunSettings

SEQUENCE_RANKS = "ulysses_sequence_parallel_size"


def shard_options(options: ForwardOptions, strategy: str, fsdp: ShardingKeys, section: str) -> ShardOptions:
    """How a model lies over the ranks, by the keys of the fsdp_config at `section`."""
    wrap = fsdp.wrap_policy
    return ShardOptions(
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
