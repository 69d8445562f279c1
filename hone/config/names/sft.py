"""Other names of the keys of `hone sft`."""

from __future__ import annotations

from collections.abc import Iterator

from .rows import ANY, Divided, Renamed, Row, Settled, same_in
from .shared import lora_section, ray

PACKING = {"no_padding": True, "left_right": False, "right": False}


def _sft() -> Iterator[Row]:
    yield Divided("data.micro_batch_size", "data.micro_batch_size_per_gpu", "ulysses_sequence_parallel_size")
    yield Renamed("data.multiturn.messages_key", "data.messages_key")
    yield Renamed("data.pad_mode", "model.use_remove_padding", PACKING)
    yield Renamed("use_remove_padding", "model.use_remove_padding")
    yield Settled("data.balance_dp_token", ANY, "rows are always dealt so that token counts are close")
    yield Settled("data.num_workers", ANY, "the driver reads the rows of a batch by itself")
    yield Settled("data.custom_cls.path", (), "data set classes of your own")
    yield Settled("data.custom_cls.name", ANY, "there is no data set class of your own")
    yield Settled("data.tools_key", (), "columns of tools")
    yield Settled("data.enable_thinking_key", (), "a column for the chat template")
    yield Settled("data.enable_thinking_default", ("none",), "arguments of the chat template")
    yield Settled("data.ignore_input_ids_mismatch", (False,), "templates that rewrite earlier turns")
    yield Settled("data.use_shm", (False,), "files are read where they are")
    yield Settled("data.chat_template", (), "templates in the configuration")
    yield Settled("data.apply_chat_template_kwargs.*", (), "arguments of the chat template")
    yield Renamed("model.path", "model.partial_pretrain")
    yield Settled("model.use_shm", (False,), "files are read where they are")
    yield from lora_section("model", more=False)
    yield Renamed("optim.warmup_steps_ratio", "optim.lr_warmup_steps_ratio")
    yield Renamed("optim.warmup_style", "optim.lr_scheduler")
    yield Renamed("optim.lr_scheduler_type", "optim.lr_scheduler")
    yield from same_in("checkpoint", "trainer.checkpoint", "save_contents")
    same = ("${trainer.checkpoint.save_contents}",)
    for place in ("checkpoint", "trainer.checkpoint"):
        yield Settled(f"{place}.load_contents", same, "what is saved is loaded")
    yield Settled("trainer.default_hdfs_dir", (), "remote folders", instead="set trainer.default_local_dir")
    yield Settled("trainer.profile_interval", ([-1, -1],), "profiling")
    yield from _sft_engine()


def _sft_engine() -> Iterator[Row]:
    fsdp = "model.fsdp_config"
    for name in ("engine=", "optim="):
        yield Settled(name, ("fsdp", "fsdp2"), "engines without torch's FSDP", instead="set model.strategy")
    yield Renamed("engine.strategy", "model.strategy")
    yield Renamed("engine.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size")
    yield Renamed("engine.optimizer_offload", f"{fsdp}.cpu_offload")
    yield Renamed("engine.param_offload", f"{fsdp}.offload_params")
    yield Renamed("engine.dtype", f"{fsdp}.mixed_precision.param_dtype")
    yield from same_in("engine", fsdp, "model_dtype", "fsdp_size", "reshard_after_forward", "forward_prefetch")
    yield from same_in("engine.mixed_precision", f"{fsdp}.mixed_precision", "param_dtype", "reduce_dtype")
    layers = ("min_num_params", "transformer_layer_cls_to_wrap")
    yield from same_in("engine.wrap_policy", f"{fsdp}.wrap_policy", *layers)
    yield Settled("engine.use_torch_compile", (False,), "compiling")
    yield Settled("engine.full_determinism", (False,), "deterministic kernels")
    yield Settled("engine.use_orig_params", ANY, "the strategy decides it")
    yield Settled("engine.seed", ANY, "trainer.seed is the seed of a run")
    yield Settled("engine.*", (), "engines without torch's FSDP")


SFT: tuple[Row, ...] = (*_sft(), *ray())
