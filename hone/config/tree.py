"""Small operations on plain nested dicts that are addressed by dotted keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Tree = dict[str, Any]
_ABSENT = object()


def get(tree: Tree, dotted: str, default: Any = _ABSENT) -> Any:
    """The value at a dotted key; raises KeyError when there is none and no default is given."""
    value: Any = tree
    for part in dotted.split("."):
        if not isinstance(value, dict) or part not in value:
            if default is _ABSENT:
                raise KeyError(dotted)
            return default
        value = value[part]
    return value


def put(tree: Tree, dotted: str, value: Any) -> None:
    """Sets a dotted key and makes the sections on the way; a scalar on the way is replaced by a section."""
    *sections, last = dotted.split(".")
    for part in sections:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    tree[last] = value


def with_text_keys(value: Any) -> Any:
    """Of a value and all below it: YAML reads the keys 1 and yes as a number and a boolean."""
    if isinstance(value, dict):
        return {str(name): with_text_keys(below) for name, below in value.items()}
    return value


def drop(tree: Tree, dotted: str) -> None:
    section, _, last = dotted.rpartition(".")
    del (get(tree, section) if section else tree)[last]


def merge(base: Tree, over: Tree) -> Tree:
    """`over` on top of `base`: sections are merged, everything else is replaced."""
    merged = dict(base)
    for name, value in over.items():
        below = base.get(name)
        merged[name] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key that holds a value, with it; an empty section counts as a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
