"""What can be a path at all, and what the name of a model on the hub."""

from __future__ import annotations

import re
from pathlib import Path

from .problems import Problem, in_brief

# name, or owner/name: letters, digits and single dots, dashes and underscores inside
HUB_NAME = re.compile(r"(?=.{1,96}$)(?!.*(--|\.\.))\w([\w.-]*\w)?(/\w([\w.-]*\w)?)?", re.ASCII)


_VARIABLE = re.compile(r"\$\{?(\w+)")


def impossible_path(key: str, path: str) -> Problem | None:
    """The problem of a path that cannot even be looked up: the home of nobody, a name too long, a closed folder, a
    variable that no shell has replaced."""
    try:
        Path(path).expanduser().stat()
    except (FileNotFoundError, NotADirectoryError):
        return _variable(key, path)
    except RuntimeError:
        reason = f"there is no user {path.partition('/')[0].removeprefix('~')}"
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
    else:
        return None
    return Problem(key, f"{in_brief(path)!r} is no path here: {reason}", "a path", f"set {key} to another one")


def _variable(key: str, path: str) -> Problem | None:
    """Shells replace variables, and hone does not: a folder called $HOME is nothing that anybody wants."""
    found = _VARIABLE.search(path)
    if found is None:
        return None
    name = found.group(1)
    fix = f"let the shell replace it (not in single quotes), or write ${{oc.env:{name}}}"
    return Problem(key, f"{path} holds the variable ${name}, which is not replaced here", "a path", fix)
