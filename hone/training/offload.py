"""Weights and optimiser state in CPU memory while nobody computes with them: slower steps for a larger model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hone.training.sharding import Sharding

CPU = torch.device("cpu")


@dataclass(frozen=True)
class OffloadOptions:
    weights: bool = False
    optimizer_state: bool = False


class Offload:
    """Brings an engine's tensors to its device for the time of a `with`, and back to CPU memory after the outermost."""

    def __init__(
        self,
        module: nn.Module,
        sharding: Sharding,
        optimizer: torch.optim.Optimizer | None,
        device: torch.device,
        options: OffloadOptions,
    ) -> None:
        self.module, self.sharding, self.optimizer, self.device, self.options = (
            module, sharding, optimizer, device, options,
        )  # fmt: skip
        self.users = 0
        self._leave_weights()

    @contextmanager
    def weights(self) -> Iterator[None]:
        self.users += 1
        try:
            if self.options.weights and self.users == 1:
                self.sharding.move(self.module, self.device)
            yield
        finally:
            self.users -= 1
            if not self.users:
                self._leave_weights()

    @contextmanager
    def optimizer_state(self) -> Iterator[None]:
        """For the step itself, and to save or load the state."""
        moves = self.options.optimizer_state and self.optimizer is not None
        if moves:
            self._move_state(self.device)
        try:
            yield
        finally:
            if moves:
                self._move_state(CPU)

    def _leave_weights(self) -> None:
        if not self.options.weights:
            return
        for parameter in self.module.parameters():
            parameter.grad = None  # of a step that is over
        self.sharding.move(self.module, CPU)

    def _move_state(self, device: torch.device) -> None:
        assert self.optimizer is not None
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                # Step counts stay where the optimiser made them.
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    state[name] = value.to(device, non_blocking=device != CPU)
