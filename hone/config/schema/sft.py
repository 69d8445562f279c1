"""The root of a supervised fine-tuning run's configuration."""

from __future__ import annotations

from typing import Literal

from .base import Node, key, node, ref
from .fsdp import Contents, ShardingKeys
from .model import LoraKeys, OverrideConfig
from .optim import Beta, OptimizerKeys, Schedule
from .trainer import Device, Logger, RayInitConfig, ResumeMode, rank_timeout


class SFTMultiTurn(Node):
    """Conversations of several turns."""

    enable: bool = key(False, "Train all assistant turns of messages_key instead of one response to one prompt.")


class SFTDataConfig(Node):
    """Demonstrations."""

    train_files: str | list[str] = key(
        "~/data/gsm8k/train.parquet", "Training rows: one file or a list of parquet, json or jsonl files.", min_length=1
    )
    val_files: str | list[str] | None = key(
        None, "Validation rows: one file or a list; null validates nothing.", min_length=1
    )
    prompt_key: str = key("prompt", "Column with the prompt: text, or a list of messages.")
    response_key: str = key("response", "Column with the response text.")
    prompt_dict_keys: list[str] = key([], "Names to follow inside prompt_key's column, where that holds a mapping.")
    response_dict_keys: list[str] = key([], "Names to follow inside response_key's column.")
    messages_key: str = key("messages", "Column with a whole conversation, for multiturn.enable.")
    multiturn: SFTMultiTurn = node(SFTMultiTurn)
    max_length: int = key(1024, "Longest row in tokens, prompt and response together.", ge=1)
    truncation: Literal["error", "left", "right"] = key("error", "What to do with a longer row.")
    train_batch_size: int = key(256, "Rows per optimiser step, over all ranks.", ge=1)
    micro_batch_size_per_gpu: int = key(4, "Rows per forward and backward pass of a rank.", ge=1)
    use_dynamic_bsz: bool = key(False, "Fill micro-batches by max_token_len_per_gpu instead of by count.")
    max_token_len_per_gpu: int = key(16384, "Most tokens in one micro-batch of a rank.", ge=1)
    train_max_samples: int = key(-1, "Training rows to use; -1 uses all of them.", ge=-1)
    val_max_samples: int = key(-1, "Validation rows to use; -1 uses all of them.", ge=-1)
    shuffle: bool = key(True, "Draw rows in random order, from `seed` alone.")
    seed: int = key(42, "Seed of the order of rows and of the choice made by train_max_samples.", ge=0)
    trust_remote_code: bool = key(ref("model.trust_remote_code"), "Let the tokenizer run code that comes with it.")


class SFTFsdpConfig(ShardingKeys):
    """How weights are held."""

    cpu_offload: bool = key(False, "Keep the optimiser's state in CPU memory while it is not in use.")
    offload_params: bool = key(False, "With cpu_offload: keep the weights there too, between their uses.")


class SFTModelConfig(LoraKeys):
    """The model to fine-tune."""

    partial_pretrain: str = key("~/models/gemma-1.1-7b-it", "Folder or hub name of the Hugging Face model to train.")
    strategy: Literal["fsdp", "fsdp2"] = key("fsdp2", "Which of torch's two ways shards the model over ranks.")
    fsdp_config: SFTFsdpConfig = node(SFTFsdpConfig)
    external_lib: str | None = key(None, "Python package to import before loading the model.")
    override_config: OverrideConfig = node(OverrideConfig)
    enable_gradient_checkpointing: bool = key(False, "Recompute activations in the backward pass to save memory.")
    trust_remote_code: bool = key(False, "Let the model run Python code that comes with it.")
    use_liger: bool = key(False, "Replace layers by Liger kernels.")
    use_remove_padding: bool = key(False, "Pack rows end to end instead of padding them to one length.")
    use_fused_kernels: bool = key(False, "Compute log-probs from hidden states in chunks.")


class SFTOptimConfig(OptimizerKeys):
    """The optimiser and its schedule."""

    lr: float = key(1e-5, "Highest learning rate, reached after warm-up.", ge=0)
    betas: list[Beta] = key([0.9, 0.95], "Decay rates of Adam's first and second moment.", min_length=2, max_length=2)
    lr_warmup_steps_ratio: float = key(0.1, "Warm-up as a share of all steps.", ge=0, le=1)
    warmup_steps_ratio: float | None = key(None, "Another name of lr_warmup_steps_ratio.", ge=0, le=1)
    clip_grad: float = key(1.0, "Largest norm of the gradient; a larger one is scaled down.", gt=0)
    lr_scheduler: Schedule = key("cosine", "Shape of the learning rate after warm-up.")


class SFTCheckpointConfig(Node):
    """What a checkpoint holds."""

    save_contents: list[Contents] = key(
        ["model", "optimizer", "extra", "hf_model"],
        "Parts to save: model weights, optimizer state, extra (schedule, random state), hf_model (a loadable folder).",
    )


class SFTTrainerConfig(Node):
    """The training loop."""

    total_epochs: int = key(1, "Passes over the training set.", ge=1)
    total_training_steps: int | None = key(None, "Optimiser steps; null works them out from total_epochs.", ge=1)
    project_name: str = key("sft", "Project in wandb, swanlab and mlflow; part of default_local_dir.")
    experiment_name: str = key("default", "Name of the run; part of default_local_dir.")
    logger: list[Logger] = key(["console"], "Where metrics go.")
    default_local_dir: str = key(
        "checkpoints/${trainer.project_name}/${trainer.experiment_name}", "Folder of the run: checkpoints and metrics."
    )
    save_freq: int = key(-1, "Steps between checkpoints; -1 saves after the last step alone.", ge=-1)
    test_freq: int = key(-1, "Steps between validations; -1 turns validation by step off.", ge=-1)
    seed: int = key(0, "Seed of newly made weights and of dropout.", ge=0)
    device: Device = key("auto", "Where the model runs; auto takes a GPU if there is one.")
    nnodes: int = key(1, "Machines.", ge=1)
    n_gpus_per_node: int = key(1, "Ranks on each machine.", ge=1)
    ray_wait_register_center_timeout: int = rank_timeout()
    resume_mode: ResumeMode = key("auto", "auto goes on from the newest checkpoint, resume_path from the given one.")
    resume_from_path: str | None = key(None, "Checkpoint folder to resume from, with resume_mode=resume_path.")
    max_ckpt_to_keep: int | None = key(None, "Newest checkpoints to keep; null keeps all.", ge=1)
    checkpoint: SFTCheckpointConfig = node(SFTCheckpointConfig)


class SFTConfig(Node):
    """A supervised fine-tuning run."""

    data: SFTDataConfig = node(SFTDataConfig)
    model: SFTModelConfig = node(SFTModelConfig)
    optim: SFTOptimConfig = node(SFTOptimConfig)
    trainer: SFTTrainerConfig = node(SFTTrainerConfig)
    ray_init: RayInitConfig = node(RayInitConfig)
    ulysses_sequence_parallel_size: int = key(1, "Ranks that share one sequence.", ge=1)

    @property
    def ranks(self) -> int:
        return self.trainer.nnodes * self.trainer.n_gpus_per_node
