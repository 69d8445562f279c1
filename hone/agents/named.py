"""Functions and classes that a file or a key names: `file.py:NAME`, or `package.module.NAME`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.user_code import quote, run_file


def load_named(text: str, *, key: str, folder: Path | None = None) -> Any:
    """What `text` names. A relative file is looked for in `folder`, by default the working directory; `key` is where
    the user wrote it, for messages."""
    file, colon, name = text.rpartition(":")
    if colon and file.endswith(".py") and name:
        path = Path(file).expanduser()
        module = run_file(path if folder is None or path.is_absolute() else folder / path, key=key)
    elif not colon and "." in text:
        file, _, name = text.rpartition(".")
        module = _imported(file, key)
    else:
        raise UserError(f"{key}={text}: expected FILE.py:NAME or package.module.NAME")
    if not hasattr(module, name):
        raise UserError(f"{key}={text}: {file} defines no {name}")
    return getattr(module, name)


def _imported(module: str, key: str) -> Any:
    try:
        return import_module(module)
    except (Exception, SystemExit) as problem:
        raise UserError(f"{key}: {module} cannot be imported: {quote(problem, None)}") from problem
