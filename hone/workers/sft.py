"""Supervised fine-tuning in one rank: likelihood of demonstrations, and its gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hone.batch import Batch
from hone.config.schema.sft import SFTConfig, SFTFsdpConfig
from hone.models.heads import LogitMemory
from hone.models.load import ModelSource, load_causal_lm, load_tokenizer
from hone.models.lora import attach
from hone.models.ulysses import check_shareable
from hone.training.checkpoint import load_engine, save_engine
from hone.training.engine import TorchEngine
from hone.training.offload import OffloadOptions
from hone.training.outputs import ForwardOptions
from hone.workers.engine_parts import (
    SEQUENCE_RANKS,
    compute_dtype_of,
    fused_chunk,
    lora_settings,
    micro_batching,
    shard_options,
)
from hone.workers.objectives import LikelihoodObjective
from hone.workers.recipe import EngineRecipe, Training
from hone.workers.settings import RunSettings

SECTION = "model.fsdp_config"


class SFTWorker:
    def __init__(self, config: SFTConfig, run: RunSettings, peers: Mapping[str, Any]) -> None:
        self.engine = sft_engine(config, run)
        self.objective = LikelihoodObjective()
        self.tokenizer = load_tokenizer(config.model.partial_pretrain, trust_remote_code=config.model.trust_remote_code)

    def update(self, batch: Batch, training_step: int) -> dict[str, float]:
        """One optimiser step on a batch with a `loss_weight` column; metrics without prefix."""
        return self.engine.step(batch, self.objective, training_step=training_step, mask="loss_mask")

    def compute_logprobs(self, batch: Batch) -> Batch:
        """Column logprobs of the tokens under loss_mask."""
        return self.engine.forward(batch, {"logprobs"}, mask="loss_mask")

    def save(self, path: Path, contents: Collection[str]) -> None:
        save_engine(self.engine, path, contents, self.tokenizer)

    def load(self, path: Path, contents: Collection[str]) -> None:
        load_engine(self.engine, path, contents)


def sft_engine(config: SFTConfig, run: RunSettings) -> TorchEngine:
    """The model with its optimiser, sharded over all ranks."""
    return sft_recipe(config, run).engine(run.total_steps)


def sft_recipe(config: SFTConfig, run: RunSettings) -> EngineRecipe:
    data, wanted, optim = config.data, config.model, config.optim
    model = load_causal_lm(_source(config, run))
    lora = lora_settings(wanted, "model")
    adapter = None if lora is None else attach(model, lora)
    check_shareable(model, config.ulysses_sequence_parallel_size, SEQUENCE_RANKS)
    options = ForwardOptions(
        packed=wanted.use_remove_padding,
        memory=LogitMemory(fused_chunk(model) if wanted.use_fused_kernels else None),
        compute_dtype=compute_dtype_of(run, wanted.fsdp_config, SECTION),
        sequence_ranks=config.ulysses_sequence_parallel_size,
    )
    micro = micro_batching(
        data.micro_batch_size_per_gpu,
        data.use_dynamic_bsz,
        data.max_token_len_per_gpu,
        "data.max_token_len_per_gpu",
        packed=wanted.use_remove_padding,
        sequence_ranks=config.ulysses_sequence_parallel_size,
    )
    return EngineRecipe(
        model,
        options=options,
        sharding=shard_options(options, wanted.strategy, wanted.fsdp_config, SECTION),
        adapter=adapter,
        scoring=micro,
        training=Training(micro, optim, optim.lr_scheduler, optim.clip_grad),
        offload=_offload(wanted.fsdp_config),
    )


def _source(config: SFTConfig, run: RunSettings) -> ModelSource:
    wanted = config.model
    return run.source(
        wanted.partial_pretrain,
        wanted.override_config,
        model_dtype=wanted.fsdp_config.model_dtype,
        trust_remote_code=wanted.trust_remote_code,
        external_lib=wanted.external_lib,
        gradient_checkpointing=wanted.enable_gradient_checkpointing,
        packed=wanted.use_remove_padding,
        liger=wanted.use_liger,
    )


def _offload(fsdp: SFTFsdpConfig) -> OffloadOptions:
    return OffloadOptions(fsdp.cpu_offload and fsdp.offload_params, fsdp.cpu_offload)
