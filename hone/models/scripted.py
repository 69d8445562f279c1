"""Functions as graphs of operations, which run without Python between them (why: `recorded`)."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

logger = logging.getLogger(__name__)
COMPILING = threading.RLock()  # one thread at a time: what is ignored among warnings is so for all threads
Function = TypeVar("Function", bound=Callable[..., Any])
_SCRIPTED: dict[Callable[..., Any], Callable[..., Any]] = {}


def without_python(function: Function, device: torch.device) -> Function:
    """The same function, which must be kept to what TorchScript understands, on a CPU as a graph."""
    if device.type != "cpu" or not plain():
        return function
    if function not in _SCRIPTED:
        with COMPILING:
            if function not in _SCRIPTED:
                _SCRIPTED[function] = _scripted(function)
    return cast(Function, _SCRIPTED[function])


def plain() -> bool:
    """Whether nobody counts or fakes tensors, who has to see the code itself."""
    return _get_current_dispatch_mode() is None and not torch.compiler.is_compiling()


def _scripted(function: Function) -> Function:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            graph = torch.jit.script(function)
    except Exception as problem:  # another version of Python or torch: the same numbers, more slowly
        logger.debug("%s runs as it is: %s", function.__name__, problem)
        return function

    def run(*arguments: Any) -> Any:
        with as_written():
            return graph(*arguments)

    return cast(Function, run)


def as_written() -> AbstractContextManager[None]:
    """TorchScript does not look for fusions, which it would do at every new shape."""
    return torch.jit.optimized_execution(False)
