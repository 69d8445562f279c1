"""Python files of the user's: reward functions, advantage estimators, policy losses, agents. Their mistakes become
one message that names the key."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from hone.errors import UserError


def load_function(
    path: str | Path, name: str = "compute_score", *, section: str = "custom_reward_function"
) -> Callable[..., Any]:
    """The function `name` of the file at `path`; the file is executed once, like an import.

    `section` holds the keys `path` and `name` that the user set, for messages.
    """
    module = run_file(path, key=f"{section}.path")
    function = getattr(module, name, None)
    if not callable(function):
        defined = [n for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
        raise UserError(
            f"{section}.name={name}: {path} defines {', '.join(defined) or 'no function'}. Name one of its own."
        )
    return function


def shapes(result: Any) -> str:
    """What a function returned, in a few words for a message: kinds and shapes, no numbers."""
    if isinstance(result, Tensor):
        return f"a tensor {tuple(result.shape)}"
    if isinstance(result, dict):
        return "{" + ", ".join(f"{key}: {shapes(value)}" for key, value in result.items()) + "}"
    if isinstance(result, tuple):
        return "(" + ", ".join(shapes(value) for value in result) + ")"
    return type(result).__name__


def run_file(path: str | Path, *, key: str) -> ModuleType:
    """Executes the file once, like an import; `key` is where the user named it, for messages."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{key}={path}: there is no such file (the working directory is {Path.cwd()}).")
    spec = importlib.util.spec_from_file_location(f"hone_custom_{file.stem}_{abs(hash(file.resolve()))}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{key}={file}: expected a Python file ending in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise UserError(f"{key}={file} fails when it is loaded: {type(problem).__name__}: {problem}.") from problem
    return module
