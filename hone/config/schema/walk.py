"""Looking things up in the schema: every dotted key with its meaning, accepted values and default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from .base import Node, default_tree, members


@dataclass(frozen=True)
class KeyDoc:
    """What is known about one key. `choices` is empty when the key is not an enumeration."""

    key: str
    meaning: str
    expected: str
    choices: tuple[Any, ...]
    default: Any
    section: bool


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
        yield KeyDoc(prefix + name, meaning, expected, choices_of(field), default, child is not None)
        if child:
            yield from _document(child, default, f"{prefix}{name}.")


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


def expectation(field: FieldInfo) -> str:
    """What a key accepts, in words: "an integer >= 1, or null"."""
    kinds = [_kind(m) for m in members(field.annotation) if m is not type(None)]
    bounds = " and ".join(f"{symbol} {bound:g}" for symbol, bound in _bounds(field))
    words = " or ".join(kinds) + (f" {bounds}" if bounds else "")
    return words + (", or null" if type(None) in members(field.annotation) else "")


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        bounded = FieldInfo.from_annotation(annotation)
        return " ".join([_kind(bounded.annotation), " and ".join(f"{s} {b:g}" for s, b in _bounds(bounded))]).strip()
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", Any: "any value"}
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return "one of " + ", ".join(str(c) for c in get_args(annotation))
    if origin is list:
        return "a list, each " + _kind(get_args(annotation)[0])
    return "a mapping" if origin is dict else names.get(annotation, "a section")


def _bounds(field: FieldInfo) -> Iterator[tuple[str, float]]:
    for rule in field.metadata:
        for attribute, symbol in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(rule, attribute, None)
            if bound is not None:
                yield symbol, bound
