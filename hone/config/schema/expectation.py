"""What a key accepts, in words: "an integer >= 1, or null". In English and in Chinese."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from .base import members


@dataclass(frozen=True)
class Words:
    """`kinds` are the names of plain types; the others are joined with what they speak of."""

    kinds: dict[Any, str]
    mapping: str
    section: str
    one_of: str
    comma: str
    list_of: str
    either: str
    both: str
    or_null: str


ENGLISH = Words(
    {int: "an integer", float: "a number", bool: "true or false", str: "text", Any: "any value"},
    mapping="a mapping", section="a section", one_of="one of ", comma=", ", list_of="a list, each ",
    either=" or ", both=" and ", or_null=", or null",
)  # fmt: skip
CHINESE = Words(
    {int: "整数", float: "数", bool: "true 或 false", str: "文本", Any: "任意值"},
    mapping="映射", section="一组键", one_of="以下之一：", comma="、", list_of="列表，每项为",
    either="，或", both=" 且 ", or_null="；或 null",
)  # fmt: skip


def expectation(field: FieldInfo, words: Words = ENGLISH) -> str:
    kinds = [_kind(m, words) for m in members(field.annotation) if m is not type(None)]
    bounds = _bounded(field, words)
    text = words.either.join(kinds) + (f" {bounds}" if bounds else "")
    return text + (words.or_null if type(None) in members(field.annotation) else "")


def _kind(annotation: Any, words: Words) -> str:
    if get_origin(annotation) is Annotated:
        limited = FieldInfo.from_annotation(annotation)
        return f"{_kind(limited.annotation, words)} {_bounded(limited, words)}".strip()
    origin = get_origin(annotation) or annotation
    if origin is Literal:
        return words.one_of + words.comma.join(str(choice) for choice in get_args(annotation))
    if origin is list:
        return words.list_of + _kind(get_args(annotation)[0], words)
    return words.mapping if origin is dict else words.kinds.get(annotation, words.section)


def _bounded(field: FieldInfo, words: Words) -> str:
    return words.both.join(f"{symbol} {bound:g}" for symbol, bound in _bounds(field))


def _bounds(field: FieldInfo) -> Iterator[tuple[str, float]]:
    for rule in field.metadata:
        for attribute, symbol in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            bound = getattr(rule, attribute, None)
            if bound is not None:
                yield symbol, bound
