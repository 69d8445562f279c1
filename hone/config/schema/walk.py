"""Looking things up in the schema: every dotted key with its meaning, accepted values and default."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from .base import Node, default_tree, members
from .expectation import expectation


@dataclass(frozen=True)
class KeyDoc:
    """What is known about one key. `choices` is empty when the key is not an enumeration. `told_in` says where its
    meaning stands, "Class.name", or "Class" for a section that its class describes; keys that share it are the same
    field in several places."""

    key: str
    meaning: str
    expected: str
    choices: tuple[Any, ...]
    default: Any
    section: bool
    field: FieldInfo
    told_in: str


def fields_of(section: type[Node]) -> dict[str, FieldInfo]:
    """The keys of one section as they are written in YAML."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def section_of(field: FieldInfo) -> type[Node] | None:
    """The class of a sub-section, or None for a key that holds a value."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Node) else None


def is_open(section: type[Node]) -> bool:
    return section.model_config.get("extra") == "allow"


def takes_mapping(field: FieldInfo) -> bool:
    return any((get_origin(m) or m) is dict for m in members(field.annotation))


def document(root: type[Node]) -> dict[str, KeyDoc]:
    """Every key of a root configuration, sections included, in the order of the schema."""
    return {doc.key: doc for doc in _document(root, default_tree(root), "")}


def _document(section: type[Node], defaults: dict[str, Any], prefix: str) -> Iterator[KeyDoc]:
    for name, field in fields_of(section).items():
        child, default = section_of(field), defaults[name]
        meaning = field.description or (child.__doc__ or "").strip()
        expected = "a section" if child else expectation(field)
        told_in = child.__name__ if child and not field.description else f"{_definer(section, field)}.{name}"
        yield KeyDoc(prefix + name, meaning, expected, choices_of(field), default, child is not None, field, told_in)
        if child:
            yield from _document(child, default, f"{prefix}{name}.")


def _definer(section: type[Node], field: FieldInfo) -> str:
    """The class that writes a field of a section down: itself, or one that it builds on."""
    name = next(name for name, own in section.model_fields.items() if own is field)
    return next(kin.__name__ for kin in section.__mro__ if name in inspect.get_annotations(kin))


def knows(root: type[Node], dotted: str) -> bool:
    """Whether a dotted key exists, or lies inside a mapping that takes any key."""
    section: type[Node] = root
    parts = dotted.split(".")
    for i, part in enumerate(parts):
        field = fields_of(section).get(part)
        if field is None:
            return is_open(section)
        child = section_of(field)
        if child is None:
            return i == len(parts) - 1 or takes_mapping(field)
        section = child
    return True


def choices_of(field: FieldInfo) -> tuple[Any, ...]:
    alternatives = [get_args(m)[0] if get_origin(m) is list else m for m in members(field.annotation)]
    literals = [m for m in alternatives if get_origin(m) is Literal]
    return tuple(choice for literal in literals for choice in get_args(literal))
