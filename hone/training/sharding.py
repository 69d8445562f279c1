"""How a model's weights lie over the ranks: whole in one process, or sharded by torch's FSDP2 or FSDP1.

Gradients are those of the sum of all ranks' losses. Both kinds of FSDP average over ranks, and gloo cannot scale while
it sums, so `loss_scale` undoes the average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from hone.errors import UserError
from hone.models.recorded import never_record


@dataclass(frozen=True)
class ShardOptions:
    """strategy: fsdp or fsdp2; the others as in `fsdp_config`. `section` is where the user finds them.

    shard_size: ranks that hold one copy of the weights together; -1: all
    """

    strategy: str = "fsdp2"
    shard_size: int = -1
    reshard_after_forward: bool = True
    forward_prefetch: bool = False
    layer_classes: tuple[str, ...] = ()
    min_num_params: int = 0
    cpu_policy: bool = False  # weights, gradients and optimiser state live in CPU memory and visit the device
    param_dtype: torch.dtype = torch.float32
    reduce_dtype: torch.dtype = torch.float32
    section: str = "actor_rollout_ref.actor.fsdp_config"


class Sharding(Protocol):
    loss_scale: float
    whole: bool  # whether this process holds all of the weights as plain tensors

    def clip(self, module: nn.Module, limit: float) -> float:
        """Scales all gradients down to the norm `limit`; returns the norm they had, the same on every rank."""
        ...

    def move(self, module: nn.Module, device: torch.device) -> None:
        """Takes this process's part of the weights to a device. Parameters stay the objects that they are."""
        ...


class Whole:
    """All weights in this process, no wrapper."""

    loss_scale = 1.0
    whole = True

    def clip(self, module: nn.Module, limit: float) -> float:
        return float(nn.utils.clip_grad_norm_(module.parameters(), limit))

    def move(self, module: nn.Module, device: torch.device) -> None:
        module.to(device)


class Fsdp2:
    whole = False

    def __init__(self, module: nn.Module, model: PreTrainedModel, options: ShardOptions, device: torch.device) -> None:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        mesh = _mesh(options, device)
        precision = MixedPrecisionPolicy(param_dtype=options.param_dtype, reduce_dtype=options.reduce_dtype)
        pinned = CPUOffloadPolicy(pin_memory=device.type != "cpu")
        shard = partial(
            fully_shard,
            mesh=mesh,
            mp_policy=precision,
            reshard_after_forward=options.reshard_after_forward,
            offload_policy=pinned if options.cpu_policy else OffloadPolicy(),
        )
        for layer in layer_units(model, options):
            shard(layer)
        shard(module)
        self.loss_scale = float(dist.get_world_size())

    def clip(self, module: nn.Module, limit: float) -> float:
        norm = nn.utils.clip_grad_norm_(module.parameters(), limit)
        return float(whole_tensor(norm))

    def move(self, module: nn.Module, device: torch.device) -> None:
        module.to(device)


class Fsdp1:
    whole = False

    def __init__(self, model: PreTrainedModel, options: ShardOptions) -> None:
        self.model, self.options = model, options
        self.loss_scale = float(dist.get_world_size())

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

        options = self.options
        hybrid = options.shard_size not in (-1, dist.get_world_size())
        names = {True: ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"), False: ("FULL_SHARD", "SHARD_GRAD_OP")}[hybrid]
        layers = set(layer_units(self.model, options))
        return FullyShardedDataParallel(
            module,
            device_mesh=_mesh(options, device) if hybrid else None,
            sharding_strategy=ShardingStrategy[names[0 if options.reshard_after_forward else 1]],
            auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in layers),
            mixed_precision=MixedPrecision(param_dtype=options.param_dtype, reduce_dtype=options.reduce_dtype),
            device_id=device if device.type == "cpu" else torch.cuda.current_device(),
            forward_prefetch=options.forward_prefetch,
            use_orig_params=True,
        )

    def clip(self, module: nn.Module, limit: float) -> float:
        return float(module.clip_grad_norm_(limit))  # type: ignore[operator]

    def move(self, module: nn.Module, device: torch.device) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        for wrapped in FullyShardedDataParallel.fsdp_modules(module):
            if wrapped._handle is None:
                continue
            wrapped._handle.flat_param_to(device)
            # torch remembers the shard apart from the parameter that views it.
            wrapped._handle.flat_param._local_shard = wrapped._handle.flat_param.data
        for buffer in module.buffers():
            buffer.data = buffer.data.to(device)


def shard(
    module: nn.Module, model: PreTrainedModel, options: ShardOptions | None, device: torch.device
) -> tuple[nn.Module, Sharding]:
    """The module (which holds the model) as it is to be called, and how its weights lie. Alone, nothing is wrapped."""
    if options is None or not dist.is_initialized() or dist.get_world_size() == 1:
        if options is not None and options.cpu_policy and device.type != "cpu":
            raise UserError(
                f"{options.section}.offload_policy=True shards weights over several ranks, and there is one; set "
                f"{options.section}.param_offload=True and {options.section}.optimizer_offload=True instead"
            )
        return module, Whole()
    never_record(model)
    if options.strategy == "fsdp2":
        return module, Fsdp2(module, model, options, device)
    fsdp1 = Fsdp1(model, options)
    return fsdp1.wrap(module, device), fsdp1


def _mesh(options: ShardOptions, device: torch.device) -> DeviceMesh:
    """One dimension of all ranks, or (replicas, shards)."""
    world, size = dist.get_world_size(), options.shard_size
    if size in (-1, world):
        return init_device_mesh(device.type, (world,))
    return init_device_mesh(device.type, (world // size, size), mesh_dim_names=("replicate", "shard"))


def layer_units(model: PreTrainedModel, options: ShardOptions) -> list[nn.Module]:
    """The units of sharding: layers of some classes (the model's own list by default), or of some size."""
    if options.min_num_params:
        big = [m for m in model.base_model.modules() if _count(m) >= options.min_num_params and _is_unit(m, model)]
        return [m for m in big if m is not model.base_model and not any(c in big for c in m.children())]
    classes = options.layer_classes or tuple(model._no_split_modules or ())
    found = [m for m in model.modules() if type(m).__name__ in classes]
    if not found:
        raise UserError(
            f"{options.section}.wrap_policy.transformer_layer_cls_to_wrap: {type(model).__name__} has no layers of "
            f"{', '.join(classes) or 'any class it names itself'}; name the class of its transformer layers"
        )
    return found


def _is_unit(module: nn.Module, model: nn.Module) -> bool:
    """Whether FSDP can gather it by itself: it is called, and none of its weights also stands elsewhere, as those of an
    embedding do that is the head as well."""
    places = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return not isinstance(module, nn.ModuleList) and all(places[id(p)] == 1 for p in module.parameters())


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


FULL = StateDictOptions(full_state_dict=True)
PREFIX = "model."  # of the language model inside the module that is sharded


def whole_weights(module: nn.Module, *, trained: bool = False) -> dict[str, Tensor]:
    """Every weight, or every trained one, in full on every rank, under its Hugging Face name. Collective."""
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=trained)
    weights: dict[str, Any] = get_model_state_dict(module, options=options)
    return {name.removeprefix(PREFIX): value for name, value in weights.items()}


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """The inverse: each rank takes its shards. Names that the weights lack, and that the module lacks. Collective."""
    named: dict[str, Any] = {PREFIX + name: value for name, value in weights.items()}
    found = set_model_state_dict(module, named, options=StateDictOptions(full_state_dict=True, strict=False))
    missing, unexpected = ([name.removeprefix(PREFIX) for name in names] for names in found)
    return missing, unexpected


def whole_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state in full, by names of weights: the same for any number of ranks. Collective."""
    return get_optimizer_state_dict(module, optimizer, options=FULL)


def load_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The inverse. Collective."""
    set_optimizer_state_dict(module, optimizer, state, options=FULL)


def whole_tensor(tensor: Tensor) -> Tensor:
    """A sharded parameter in full on every rank, without gradient. Collective."""
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()
