"""Functions as graphs of operations, which run without Python between them (why: `recorded`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

Function = TypeVar("Function", bound=Callable[..., Any])


def without_python(function: Function, device: torch.device) -> Function:
    """The same function, which must be kept to what TorchScript understands, on a CPU as a graph."""
    return _scripted(function) if device.type == "cpu" and plain() else function


def plain() -> bool:
    """Whether nobody counts or fakes tensors, who has to see the code itself."""
    return _get_current_dispatch_mode() is None and not torch.compiler.is_compiling()


@cache
def _scripted(function: Function) -> Function:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        graph = torch.jit.script(function)

    def run(*arguments: Any) -> Any:
        with as_written():
            return graph(*arguments)

    return cast(Function, run)


def as_written() -> AbstractContextManager[None]:
    """TorchScript does not look for fusions, which it would do at every new shape."""
    return torch.jit.optimized_execution(False)
