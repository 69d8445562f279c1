"""Parses overrides in Hydra's grammar and applies them to a tree, collecting what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from .override_faults import GRAMMAR, unreadable
from .problems import Problem
from .schema.base import Node
from .schema.walk import document
from .suggest import nearest_keys
from .tree import Tree, drop, get, leaves, merge, put, with_text_keys


def unknown_key(schema: type[Node], key: str) -> Problem:
    """The problem of a key that the schema does not have."""
    if key.split(".")[0] == "hydra":
        return Problem(key, "hone has no Hydra run folders", "", "remove it; trainer.default_local_dir is the folder")
    near = nearest_keys(key, document(schema))
    fix = "did you mean " + " or ".join(near) + "?" if near else "`hone config explain COMMAND` lists all keys"
    return Problem(key, "is not a known key", "", fix)


def not_a_section(key: str, value: Any) -> Problem:
    """The problem of a section that was given a single value."""
    shown = "null" if value is None else repr(value)
    return Problem(key, f"is a section, not {shown}", "", f"set keys below it, such as {key}.KEY=VALUE")


def parse_overrides(texts: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """All overrides that can be read, and a problem for each that cannot."""
    parser = OverridesParser.create()
    parsed, problems = [], []
    for text in texts:
        try:
            override = parser.parse_override(_quote_home(text))
        except (HydraException, ValueError, RecursionError):  # ValueError: a number of thousands of digits
            problems.append(unreadable(text))
            continue
        problem = _unusable(text, override)
        if problem:
            problems.append(problem)
        else:
            parsed.append(override)
    return parsed, problems


def _quote_home(text: str) -> str:
    """Hydra's grammar has no bare `~`, and shells do not expand one after an equals sign."""
    return re.sub(r"(?<=[=\[,])\s*(~[^,\]\"']*)", r'"\1"', text)


def _unusable(text: str, override: Override) -> Problem | None:
    if not override.key_or_group:
        return Problem(text, "names no key", GRAMMAR, "write the key in full")
    if override.is_sweep_override():
        fix = "write one value, or [a,b] for a list, or quote a text that holds a comma"
        return Problem(text, "is a sweep over several values", "one value", fix)
    if override.package is not None or "/" in override.key_or_group:
        return Problem(text, "names a config group that is not in --config-path", GRAMMAR, "use the key's dotted name")
    return None


def apply_overrides(
    overrides: Iterable[Override],
    tree: Tree,
    *,
    schema: type[Node],
    known: Callable[[str], bool],
    defaults: Tree,
    user_keys: set[str],
) -> list[Problem]:
    """Changes `tree` and `user_keys` in the order of the overrides."""
    docs, problems = document(schema), []
    for override in overrides:
        key = override.key_or_group
        if not known(key):
            problems.append(unknown_key(schema, key))
        elif override.is_delete():
            problems += _reset(override, tree, defaults, user_keys)
        elif key in docs and docs[key].section and not isinstance(override.value(), dict):
            problems.append(not_a_section(key, override.value()))
        else:
            _set(key, with_text_keys(override.value()), tree, user_keys)
    return problems


def _set(key: str, value: Any, tree: Tree, user_keys: set[str]) -> None:
    below = get(tree, key, None)
    put(tree, key, merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value)
    user_keys.update(name for name, _ in leaves({key: value}))


def _reset(override: Override, tree: Tree, defaults: Tree, user_keys: set[str]) -> list[Problem]:
    """`~key` takes back what a file or an earlier override said; every key of the schema keeps its default."""
    key, expected = override.key_or_group, override.value()
    absent = object()
    value = get(tree, key, absent)
    if value is absent:
        return [Problem(f"~{key}", "there is no such key to remove", "a key that is set", "remove the override")]
    if expected is not None and expected != value:
        return [Problem(f"~{key}", f"is {value!r}, not {expected!r}", "the value that is set", f"write ~{key}")]
    default = get(defaults, key, absent)
    if default is absent:
        drop(tree, key)
    else:
        put(tree, key, default)
    user_keys -= {k for k in user_keys if k == key or k.startswith(f"{key}.")}
    return []
