"""The building blocks of the schema: `Node` is one section of a configuration, `key` one documented key in it.

A default may be an interpolation (`ref("data.seed")`); it stays text here and is resolved when a run is loaded.
"""

from __future__ import annotations

from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

BLANKS: dict[str, Any] = {"blanks": True}  # of a key whose text may be blanks only
INTEGER_LIMIT = 2**63  # what libraries keep numbers in; seeds and counts beyond it fail somewhere in a run


def convert_text(value: Any, annotation: Any) -> Any:
    """Reads what YAML and shells hand over as text ("1e-6", "none", "True") as the type that the key asks for."""
    if isinstance(value, str):
        return _from_text(value, annotation)
    if isinstance(value, float) and value.is_integer() and _accepts(annotation, int, but_not=float):
        return int(value)  # 1e3 is a float to YAML
    return value


def refuse_unusable(value: Any, *, blanks: bool = False) -> None:
    """What no key can use: empty text (null is how nothing is written), of blanks too unless these are the key's to
    use, and integers that do not fit into 64 bits."""
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, str) and not (part if blanks else part.strip()):
            raise PydanticCustomError("empty", "empty text")
        if isinstance(part, int) and not -INTEGER_LIMIT <= part < INTEGER_LIMIT:
            raise PydanticCustomError("too_large", "beyond 64 bits")


def _from_text(text: str, annotation: Any) -> Any:
    if text in _choices(annotation):
        return text
    if _is_none_text(text) and _accepts(annotation, type(None)):
        return None
    if _accepts(annotation, list, but_not=str):
        return [text]
    if _accepts(annotation, bool) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text if _accepts(annotation, str) else _number_from_text(text, annotation)


def _number_from_text(text: str, annotation: Any) -> Any:
    for number in (int, float):
        if _accepts(annotation, number):
            try:
                return number(text)
            except ValueError:
                continue
    return text  # pydantic reports it against the declared type


def _is_none_text(text: str) -> bool:
    return text.lower() in ("none", "null")


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union; one alternative for anything else."""
    origin = get_origin(annotation)
    if origin is Union or type(annotation).__name__ == "UnionType":
        return tuple(m for part in get_args(annotation) for m in members(part))
    return (annotation,)


def _accepts(annotation: Any, kind: type, *, but_not: type | None = None) -> bool:
    kinds = [get_origin(m) or m for m in members(annotation)]
    return kind in kinds and but_not not in kinds


def _choices(annotation: Any) -> tuple[Any, ...]:
    return tuple(c for m in members(annotation) if get_origin(m) is Literal for c in get_args(m))


class Node(BaseModel):
    """One section: unknown keys and values of another type are refused; a loaded configuration is read-only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _convert(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None  # pydantic always names the field of a field validator
        field = cls.model_fields[info.field_name]
        converted = convert_text(value, field.annotation)
        refuse_unusable(converted, blanks=field.json_schema_extra == BLANKS)
        return converted


class OpenNode(Node):
    """A section that also takes keys of its own choosing, handed on to the library that knows them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())


def key(default: Any, meaning: str, **constraints: Any) -> Any:
    """A key of a section: its default, what it means, and optional bounds (ge, gt, le, lt) or alias."""
    return Field(default, description=meaning, **constraints)


def node(section: type[Node], meaning: str = "", **defaults: Any) -> Any:
    """A sub-section, optionally with other defaults than its own class gives."""
    return Field(default_factory=lambda: section.model_construct(**defaults), description=meaning)


def ref(path: str) -> Any:
    """The default of a key that follows another key unless it is set."""
    return "${" + path + "}"


def default_tree(section: type[Node]) -> dict[str, Any]:
    """All keys with their defaults, as a plain tree; interpolations are left as text."""
    return section().model_dump(by_alias=True, warnings=False)
