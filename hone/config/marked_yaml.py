"""A resolved configuration as YAML in which comments say what differs from the default and where values came from.
It loads back to the same configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .load import Loaded
from .presets import DEFAULT_PRESET, PRESETS
from .tree import Tree, get, leaves
from .written import as_yaml

_ABSENT = object()


def marked(command: str, loaded: Loaded, *, changed_only: bool = False) -> str:
    """With changed_only just the keys whose value is not the default."""
    tree, defaults = loaded.config.model_dump(by_alias=True), PRESETS[DEFAULT_PRESET[command]].resolved()
    changed = {key for key, value in leaves(tree) if get(defaults, key, _ABSENT) != value}
    marks = {key: _mark(key, loaded.origins.get(key), defaults, changed) for key, _ in leaves(tree)}
    wanted = _only(tree, changed) if changed_only else tree
    return with_comments(wanted, marks) if wanted else "{}  # nothing differs from the defaults\n"


def _mark(key: str, origin: str | None, defaults: Tree, changed: set[str]) -> str:
    default = get(defaults, key, _ABSENT)
    parts = [origin] if origin else []
    if key in changed:
        parts.append("no default" if default is _ABSENT else f"default {_scalar(default)}")
    return "; ".join(parts)


def _only(tree: Tree, keys: set[str], prefix: str = "") -> Tree:
    kept: Tree = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            if below := _only(value, keys, f"{prefix}{name}."):
                kept[name] = below
        elif f"{prefix}{name}" in keys:
            kept[name] = value
    return kept


def with_comments(tree: Tree, comments: Mapping[str, str], prefix: str = "") -> str:
    """Block YAML of a tree; the comment of a dotted key stands behind it."""
    lines = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            below = with_comments(value, comments, f"{prefix}{name}.")
            lines += [f"{_scalar(name)}:", *("  " + line for line in below.splitlines())]
        else:
            comment = _one_line(comments.get(f"{prefix}{name}", ""))
            lines.append(f"{_scalar(name)}: {_scalar(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """On one line, whatever it holds."""
    text = _flow(value, None)
    return text if text.isprintable() else _flow(value, '"')


def _flow(value: Any, style: str | None) -> str:
    text = as_yaml(value, default_flow_style=True, default_style=style, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def _one_line(comment: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in comment)
