"""Bytes of what an engine keeps from step to step, of one rank: weights, gradients, the optimiser's state, and what
sharded weights take while they are gathered. The rank that holds most counts: the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hone.config.schema.optim import OptimizerKeys
from hone.training.sharding import ShardOptions, layer_units
from hone.workers.engine_parts import optimizer_of
from hone.workers.recipe import EngineRecipe

PROBE = (64, 1024)  # large enough for optimisers that treat small parameters in another way
AHEAD = 2  # units that are gathered at once: one at work, and the next on its way


@dataclass(frozen=True)
class Storage:
    """parameters, trained: numbers of the whole model; the others are bytes

    weights, gradients, optimizer: of this rank
    whole_weights, whole_optimizer: of the whole model, as a checkpoint holds them; adapter: its trained part
    gathered: what a pass without gradient gathers of sharded weights; training_gathered: and an update
    """

    parameters: int
    trained: int = 0
    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    whole_weights: int = 0
    whole_optimizer: int = 0
    adapter: int = 0
    gathered: int = 0
    training_gathered: int = 0


def storage_of(recipe: EngineRecipe, ranks: int) -> Storage:
    model, options = recipe.model, recipe.sharding
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad and recipe.training is not None]
    optim = None if recipe.training is None else recipe.training.optim
    dealt = ways(options, ranks)
    units = _units(model, options) if ranks > 1 else []
    return Storage(
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in trained),
        weights=_held(parameters, units, options, dealt, trained=False),
        gradients=_held(trained, units, options, dealt, trained=True),
        optimizer=0 if optim is None else sum(_state(p, _rows(p, dealt), optim) for p in trained),
        whole_weights=_plain_bytes(recipe),
        whole_optimizer=0 if optim is None else sum(_state(p, p.numel(), optim) for p in trained),
        adapter=_bytes(trained) if recipe.adapter else 0,
        gathered=_gathered(units, options) if ranks > 1 else 0,
        training_gathered=_training_gathered(units, options) if ranks > 1 else 0,
    )


def whole_bytes(model: nn.Module) -> int:
    """Of a model in one process; weights under two names count once."""
    return _bytes(model.parameters())


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def _plain_bytes(recipe: EngineRecipe) -> int:
    """Of the model with its adapter merged."""
    inside = {name for name in dict(recipe.model.named_parameters()) if ".lora_A." in name or ".lora_B." in name}
    return _bytes(p for name, p in recipe.model.named_parameters() if name not in inside)


def ways(options: ShardOptions, ranks: int) -> int:
    """Ranks that hold one copy of the weights together."""
    return ranks if options.shard_size == -1 or ranks == 1 else options.shard_size


def _rows(parameter: Tensor, dealt: int) -> int:
    """Numbers of a parameter on the first rank: FSDP2 deals its rows, and all make room for the most."""
    return parameter.numel() if dealt == 1 else ceil(len(parameter) / dealt) * (parameter.numel() // len(parameter))


def _held(
    parameters: list[nn.Parameter], units: list[list[nn.Parameter]], options: ShardOptions, dealt: int, *, trained: bool
) -> int:
    """Bytes of these parameters, or of as many gradients, on one rank. FSDP1 lays all parameters of a unit into one and
    deals that, gradients likewise."""
    if options.strategy == "fsdp2" or dealt == 1:
        return sum(_rows(p, dealt) * p.itemsize for p in parameters)
    held = [unit for unit in units if not trained or any(p.requires_grad for p in unit)]
    return sum(ceil(sum(p.numel() for p in unit) / dealt) * unit[0].itemsize for unit in held)


def _units(model: PreTrainedModel, options: ShardOptions) -> list[list[nn.Parameter]]:
    """Parameters that are gathered together: those of the root first, then each layer's."""
    seen: set[int] = set()
    layers = [list(_new(layer.parameters(), seen)) for layer in layer_units(model, options)]
    root = list(_new(model.parameters(), seen))
    return [unit for unit in (root, *layers) if unit]


def _new(parameters: Iterable[nn.Parameter], seen: set[int]) -> Iterator[nn.Parameter]:
    for parameter in parameters:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter


def _sizes(units: list[list[nn.Parameter]]) -> tuple[int, int, int]:
    """Numbers of the root, of the largest layer, and of all."""
    sizes = [sum(p.numel() for p in unit) for unit in units]
    return sizes[0], max(sizes[1:], default=0), sum(sizes)


def _gathered(units: list[list[nn.Parameter]], options: ShardOptions) -> int:
    root, layer, everything = _sizes(units)
    held = root + AHEAD * layer if options.reshard_after_forward else everything
    return held * options.param_dtype.itemsize


def _training_gathered(units: list[list[nn.Parameter]], options: ShardOptions) -> int:
    """Beside the weights, the gradients of a layer as they are computed and as they are summed over ranks."""
    _, layer, _ = _sizes(units)
    return _gathered(units, options) + layer * (options.param_dtype.itemsize + options.reduce_dtype.itemsize)


def _state(parameter: Tensor, numbers: int, optim: OptimizerKeys) -> int:
    per_number, per_parameter = _probe(optim.model_dump_json(), type(optim), parameter.dtype)
    return round(per_number * numbers) + per_parameter


@cache
def _probe(optim: str, schema: type[OptimizerKeys], dtype: torch.dtype) -> tuple[float, int]:
    """Bytes of state for each number of a parameter, and beside them: what the optimiser itself keeps of a parameter
    after a step."""
    parameter = nn.Parameter(torch.zeros(PROBE, dtype=dtype))
    optimizer = optimizer_of(nn.ParameterList([parameter]), schema.model_validate_json(optim))
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    held = [t for t in optimizer.state[parameter].values() if isinstance(t, Tensor)]
    large = sum(t.nbytes for t in held if t.numel() > 1)
    return large / parameter.numel(), sum(t.nbytes for t in held if t.numel() == 1)
