"""What the parsers of all formats make of a turn's text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# What json.loads raises for a text: of its syntax, of an integer with thousands of digits, and of brackets in brackets.
UNREADABLE = (ValueError, RecursionError)
DEEPEST = 64  # objects and lists in each other: chat templates write them by recursion
Schemas = Mapping[str, Mapping[str, Any]]  # a function's name -> its schema: name, description, parameters


@dataclass(frozen=True)
class ToolCall:
    """`error` says what is wrong with a call that could not be read; the model reads it instead of a result."""

    name: str
    arguments: dict[str, Any]
    error: str = ""


@dataclass(frozen=True)
class Said:
    """A turn of the model: its words, its calls, and reasoning where the format keeps that apart."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""


Parser = Callable[[str, Schemas], Said]


def read_json(text: str) -> Any:
    """What it says; line breaks inside texts are let through, as models write them in code. Raises UNREADABLE."""
    value = json.loads(text, strict=False)
    if _deeper(value, DEEPEST):
        raise ValueError(f"more than {DEEPEST} objects and lists in each other")
    return value


def _deeper(value: Any, than: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return than == 0 or any(_deeper(part, than - 1) for part in inner)


def json_call(text: str, arguments_key: str = "arguments") -> ToolCall:
    """`{"name": ..., "arguments": {...}}`."""
    try:
        value = read_json(text)
    except UNREADABLE as problem:
        return ToolCall("", {}, f"the call is not valid JSON: {problem}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", {}, 'a call is an object {"name": ..., "' + arguments_key + '": {...}}')
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], {}, f'"{arguments_key}" must be an object, not {json.dumps(arguments):.80}')
    return ToolCall(value["name"], arguments)


def typed(text: str, function: str, parameter: str, schemas: Schemas) -> Any:
    """A value that the format writes as bare text, in the type that the schema gives the parameter."""
    schema = schemas.get(function, {}).get("parameters", {}).get("properties", {}).get(parameter, {})
    if schema.get("type") == "string":
        return text
    try:
        return read_json(text)
    except UNREADABLE:
        return text


def after_thinking(text: str) -> tuple[str, str]:
    """(reasoning with its tags, the rest): what is only thought of is not called."""
    thought, end, rest = text.rpartition("</think>")
    return thought + end, rest
