"""Activations in CPU memory between the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

SMALLEST_BYTES = 2**16  # a smaller tensor takes less memory than its copy takes time

Packed = tuple[torch.device, Tensor]


def worth_moving(tensor: Tensor) -> bool:
    """Not weights, or views of them: they stay where they are anyhow."""
    owner = tensor if tensor._base is None else tensor._base
    weight = isinstance(owner, nn.Parameter)
    return tensor.device.type != "cpu" and not weight and tensor.nbytes >= SMALLEST_BYTES


class ActivationOffload(saved_tensors_hooks):
    """What autograd saves inside goes to CPU memory, and comes back when the backward pass asks for it.

    With gradient checkpointing these are the inputs of the layers. All copies run in the order of the current stream,
    from and to pinned memory, so none is read before it is complete.
    """

    def __init__(self, moves: Callable[[Tensor], bool] = worth_moving) -> None:
        def pack(tensor: Tensor) -> Tensor | Packed:
            if not moves(tensor):
                return tensor
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            return tensor.device, host.copy_(tensor, non_blocking=True)

        def unpack(packed: Tensor | Packed) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            device, host = packed
            return host.to(device, non_blocking=True)

        super().__init__(pack, unpack)
