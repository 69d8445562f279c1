"""Python files of the user's: reward functions, advantage estimators, policy losses, agents. Their mistakes become
one message that names the key."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hone.errors import UserError

OWN_MODULE = "hone_custom_"  # how the modules of the user's files are called
VERSION = "__hone_version__"  # of the file that a module was made from


def load_function(
    path: str | Path, name: str = "compute_score", *, section: str = "custom_reward_function"
) -> Callable[..., Any]:
    """The function `name` of the file at `path`; the file is executed once, like an import.

    `section` holds the keys `path` and `name` that the user set, for messages.
    """
    module = run_file(path, key=f"{section}.path")
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{section}.name={name}: {path} {_defines(module, 'function')}. Name one of its own.")
    return function


def load_class(path: str | Path, name: str, *, section: str) -> type:
    """The same for a class."""
    module = run_file(path, key=f"{section}.path")
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        raise UserError(f"{section}.name={name}: {path} {_defines(module, 'class')}. Name one of its own.")
    return found


def _defines(module: ModuleType, kind: str) -> str:
    members = inspect.getmembers(module, inspect.isclass if kind == "class" else inspect.isfunction)
    own = [name for name, member in members if member.__module__ == module.__name__]
    return f"defines {', '.join(own) or f'no {kind}'}"


def shapes(result: Any) -> str:
    """What a function returned, in a few words for a message: kinds and shapes, no numbers."""
    from torch import Tensor  # here, since its import takes seconds that a process of a reward function can spare

    if isinstance(result, Tensor):
        return f"a tensor {tuple(result.shape)}"
    if isinstance(result, dict):
        return "{" + ", ".join(f"{key}: {shapes(value)}" for key, value in result.items()) + "}"
    if isinstance(result, tuple):
        return "(" + ", ".join(shapes(value) for value in result) + ")"
    return type(result).__name__


def run_file(path: str | Path, *, key: str) -> ModuleType:
    """Executes the file, like an import: once in a process, as long as it does not change. `key` is where the user
    named it, for messages."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"{key}={path}: there is no such file (the working directory is {Path.cwd()}).")
    name, version = f"{OWN_MODULE}{file.stem}_{abs(hash(file.resolve()))}", file.stat().st_mtime_ns
    known = sys.modules.get(name)
    if known is not None and getattr(known, VERSION, None) == version:
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{key}={file}: expected a Python file ending in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:  # an exit(0) would end the run as if it had gone well
        raise UserError(f"{key}={file} fails when it is loaded: {quote(problem, str(file))}.") from problem
    setattr(module, VERSION, version)
    return module


def quote(problem: BaseException, file: str | None) -> str:
    """An exception for a message: type, text, and the innermost line of the user's `file` that it went through."""
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    place = f" ({file}, line {frames[-1].lineno})" if frames else ""
    return f"{type(problem).__name__}: {problem}{place}"
