"""Where each value of a configuration came from, in a few words: preset, file, command line, another key, a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .compose import Composition
from .presets import PRESETS
from .tree import Tree, get, leaves

_REFERENCES = re.compile(r"\$\{([\w.\-]+)\}")


def origins(composition: Composition, before: Tree, notices: Sequence[str]) -> dict[str, str]:
    """{key: origin} of the keys that do not simply have their default. The composition's tree is raw, with
    interpolations as text; `before` is the same tree before rules derived keys from others and said so in notices."""
    found, of_preset = {}, _of_preset(composition)
    for key, value in leaves(composition.tree):
        parts = [*_set_by(key, composition, of_preset), *_derived(key, value, before, notices)]
        if parts:
            found[key] = ", ".join(parts)
    return found


def _of_preset(composition: Composition) -> dict[str, str]:
    """{key: origin} of the keys that the preset sets differently from the command's own preset."""
    name = next(name for name, preset in PRESETS.items() if preset is composition.preset)
    return dict.fromkeys(composition.preset.changes, f"preset {name}")


def _set_by(key: str, composition: Composition, of_preset: Mapping[str, str]) -> Iterator[str]:
    if key in composition.overridden:
        yield "command line"
    elif key in composition.user_keys:
        yield str(composition.file or "a group of --config-path")
    elif key in of_preset:
        yield of_preset[key]


def _derived(key: str, value: Any, before: Tree, notices: Sequence[str]) -> Iterator[str]:
    followed = _REFERENCES.findall(value) if isinstance(value, str) else []
    if followed:
        whole = value == "${" + followed[0] + "}"
        yield ("follows " if whole else "made of ") + " and ".join(followed)
    elif get(before, key, None) != value:
        named = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w.])")
        said = next((notice for notice in notices if named.search(notice)), "set by a rule")
        yield said.removeprefix(f"{key} is ")
