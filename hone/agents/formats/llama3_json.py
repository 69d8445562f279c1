"""Llama 3.1's format: the turn is {"name": ..., "parameters": {...}}, several with `;` between them."""

from __future__ import annotations

import json

from hone.agents.formats.call import UNREADABLE, Said, Schemas, ToolCall, json_call

PYTHON_TAG = "<|python_tag|>"


def parse(text: str, schemas: Schemas) -> Said:
    rest = text.strip().removeprefix(PYTHON_TAG).strip()
    if not rest.startswith("{") or '"name"' not in rest:
        return Said(text)
    calls: list[ToolCall] = []
    while rest:
        call, rest = _first(rest)
        calls.append(call)
        rest = rest.lstrip().removeprefix(";").lstrip()
    return Said("", tuple(calls))


def _first(text: str) -> tuple[ToolCall, str]:
    """A call, and what follows it; an object that does not end takes the whole rest with it."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except UNREADABLE as problem:
        return ToolCall("", {}, f"the call is not valid JSON: {problem}"), ""
    # Some fine-tunes write Hermes' word for it.
    key = "arguments" if '"parameters"' not in text[:end] and '"arguments"' in text[:end] else "parameters"
    return json_call(text[:end], key), text[end:]
