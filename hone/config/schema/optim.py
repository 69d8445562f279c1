"""`optim` sections: the optimiser and the learning-rate schedule, which counts training steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Node, key

Schedule = Literal["constant", "cosine", "linear", "wsd"]
Beta = Annotated[float, Field(ge=0, lt=1)]
OptimizerImpl = Literal["torch.optim", "torchao.optim", "bitsandbytes.optim"]


class MegatronOptimKeys(Node):
    """Keys that only Megatron's optimiser reads."""

    clip_grad: float = key(1.0, "Another name of grad_clip; with strategy=megatron a key of its own.", ge=0)
    lr_warmup_init: float = key(0.0, "Learning rate at the first warm-up step (strategy=megatron).", ge=0)
    lr_decay_steps: int | None = key(None, "Steps of the decay; null is the whole run (strategy=megatron).", ge=1)
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse_square_root"] = key(
        "constant", "Shape of the decay (strategy=megatron)."
    )
    min_lr: float = key(0.0, "Lowest learning rate (strategy=megatron).", ge=0)
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = key(
        "constant", "How the weight decay changes over the run (strategy=megatron)."
    )
    lr_wsd_decay_style: Literal["constant", "exponential", "cosine"] = key(
        "exponential", "Shape of the last phase of a warm-up, stable, decay schedule (strategy=megatron)."
    )
    lr_wsd_decay_steps: int | None = key(None, "Steps of that last phase (strategy=megatron).", ge=1)
    use_checkpoint_opt_param_scheduler: bool = key(
        False, "Take the schedule's settings from the checkpoint (strategy=megatron)."
    )


class OptimizerKeys(Node):
    """The optimiser and the numbers of its schedule that every kind of training shares."""

    optimizer: str = key("AdamW", "Class of the optimiser, such as AdamW, Adam or SGD.")
    optimizer_impl: OptimizerImpl = key("torch.optim", "Package that the optimiser's class is taken from.")
    override_optimizer_config: dict[str, Any] | None = key(None, "More arguments for the optimiser's class.")
    lr: float = key(1e-6, "Highest learning rate, reached after warm-up.", ge=0)
    betas: list[Beta] = key([0.9, 0.999], "Decay rates of Adam's first and second moment.", min_length=2, max_length=2)
    eps: float = key(1e-8, "Added to the denominator of Adam's update.", gt=0)
    weight_decay: float = key(0.01, "Decoupled weight decay.", ge=0)
    lr_warmup_steps: int = key(-1, "Warm-up in training steps; a negative value uses lr_warmup_steps_ratio.", ge=-1)
    lr_warmup_steps_ratio: float = key(0.0, "Warm-up as a share of all training steps.", ge=0, le=1)
    min_lr_ratio: float = key(0.0, "Lowest learning rate as a share of lr, at the last step.", ge=0, le=1)
    num_cycles: float = key(0.5, "Cosine waves over the run; 0.5 falls once from lr to its lowest value.", gt=0)


class OptimConfig(MegatronOptimKeys, OptimizerKeys):
    """The optimiser of actor or critic."""

    lr_scheduler_type: Schedule = key("constant", "Shape of the learning rate after warm-up.")
    warmup_style: Schedule | None = key(None, "Old name of lr_scheduler_type.")
    total_training_steps: int = key(-1, "Filled in from the trainer's number of steps; leave at -1.", ge=-1)
