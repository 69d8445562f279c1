"""Optimisers by name: a class of torch or of a package that the user names, with settings checked by its signature."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hone.errors import UserError


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    name: str = "AdamW",
    module: str = "torch.optim",
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    overrides: dict[str, Any] | None = None,
) -> torch.optim.Optimizer:
    """The class `module.name` over the trainable parameters.

    It is given those of lr, betas, eps and weight_decay that its signature knows, and `overrides` as they stand.
    """
    cls = _optimizer_class(module, name)
    known = inspect.signature(cls).parameters
    arguments = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    arguments = {k: v for k, v in arguments.items() if k in known}
    trained = [p for p in parameters if p.requires_grad]
    # Shards have a fused kernel for Adam alone.
    fusible = "fused" in known and (name in ("Adam", "AdamW") or not any(isinstance(p, DTensor) for p in trained))
    if module == "torch.optim" and fusible and not {"foreach", "differentiable"} & set(overrides or ()):
        arguments["fused"] = True  # one kernel over all parameters: a third of the step's time on small models
    for key, value in (overrides or {}).items():
        if key not in known:
            raise UserError(
                f"optim.override_optimizer_config: {module}.{name} takes no {key!r}; it takes {sorted(known)}"
            )
        arguments[key] = tuple(value) if isinstance(value, list) else value
    return cls(trained, **arguments)


def _optimizer_class(module: str, name: str) -> Any:
    try:
        namespace = importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"optim.optimizer_impl={module} needs a package that is not installed: {error}") from error
    found = getattr(namespace, name, None)
    if not inspect.isclass(found):
        raise UserError(f"optim.optimizer={name} is not an optimiser of {module}")
    return found
