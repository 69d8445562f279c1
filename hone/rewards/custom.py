"""Loads a user's reward function from a Python file."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hone.errors import UserError

PATH_KEY, NAME_KEY = "custom_reward_function.path", "custom_reward_function.name"


def load_function(path: str | Path, name: str = "compute_score") -> Callable[..., Any]:
    """The function `name` of the file at `path`; the file is executed once, like an import."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{PATH_KEY}={path}: there is no such file (the working directory is {Path.cwd()}).")
    module = _execute(file)
    function = getattr(module, name, None)
    if not callable(function):
        defined = [n for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
        raise UserError(
            f"{NAME_KEY}={name}: {file} defines {', '.join(defined) or 'no function'}. Name one of its own."
        )
    return function


def _execute(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hone_custom_{file.stem}_{abs(hash(file.resolve()))}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{PATH_KEY}={file}: expected a Python file ending in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise UserError(f"{PATH_KEY}={file} fails when it is loaded: {type(problem).__name__}: {problem}.") from problem
    return module
