"""`fsdp_config`, `checkpoint` and `profiler` sections: how weights are held, saved and observed."""

from __future__ import annotations

from typing import Literal

from .base import Node, key, node

Dtype = Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16"]
Contents = Literal["model", "optimizer", "extra", "hf_model"]
Strategy = Literal["fsdp", "fsdp2", "megatron"]


class WrapPolicy(Node):
    """Which layers become one unit of sharding."""

    min_num_params: int = key(0, "Wrap a layer once it has this many parameters; 0 wraps transformer layers.", ge=0)
    transformer_layer_cls_to_wrap: list[str] | None = key(None, "Layer classes to wrap; null asks the model.")


class MixedPrecision(Node):
    """Number formats inside the forward and backward pass."""

    param_dtype: Dtype = key("bf16", "Format of weights and activations while computing.")
    reduce_dtype: Dtype = key("fp32", "Format in which gradients are summed.")


class ShardingKeys(Node):
    """How weights lie over the ranks, and in which formats."""

    reshard_after_forward: bool = key(True, "Free gathered weights after the forward pass (fsdp2).")
    forward_prefetch: bool = key(False, "Gather the next layer's weights during the current layer (fsdp).")
    fsdp_size: int = key(-1, "Ranks in one shard group; -1 is all of them.", ge=-1)
    model_dtype: Dtype = key("fp32", "Format in which the weights are held.")
    mixed_precision: MixedPrecision = node(MixedPrecision)
    wrap_policy: WrapPolicy = node(WrapPolicy)


class ForwardFsdpConfig(ShardingKeys):
    """Sharding of a model that only computes forward passes."""

    param_offload: bool = key(False, "Keep the weights in CPU memory while they are not in use.")


class FsdpConfig(ForwardFsdpConfig):
    """Sharding of a model that is trained."""

    optimizer_offload: bool = key(False, "Keep the optimiser's state in CPU memory while it is not in use.")
    offload_policy: bool = key(False, "Keep weights, gradients and optimiser state in CPU memory (fsdp2).")


class ProfilerConfig(Node):
    """Which ranks are profiled; the steps are chosen by trainer.profile_steps."""

    discrete: bool = key(False, "Write one profile per task instead of one for the whole run.")
    all_ranks: bool = key(False, "Profile every rank.")
    ranks: list[int] | None = key(None, "Ranks to profile.")
