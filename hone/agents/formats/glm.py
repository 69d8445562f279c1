"""GLM-4.5's format and its successors': the name, then pairs of <arg_key> and <arg_value>, values as bare text."""

from __future__ import annotations

import re

from hone.agents.formats.call import Said, Schemas, ToolCall, after_thinking, typed

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
ERROR = "an argument is <arg_key>NAME</arg_key><arg_value>value</arg_value>, each name once"


def parse(text: str, schemas: Schemas) -> Said:
    thought, rest = after_thinking(text)
    calls = tuple(_call(match[1], schemas) for match in CALL.finditer(rest))
    return Said((thought + CALL.sub("", rest)).strip() if calls else text, calls)


def _call(body: str, schemas: Schemas) -> ToolCall:
    """By the marks and without a pattern for the whole, which would look for its end from every beginning."""
    name, *pairs = body.split("<arg_key>")
    name, arguments = name.strip(), {}
    for pair in pairs:
        key, closed, rest = pair.partition("</arg_key>")
        _, opened, rest = rest.partition("<arg_value>")
        value, ended, _ = rest.rpartition("</arg_value>")
        if not (closed and opened and ended) or key.strip() in arguments:
            return ToolCall(name, {}, ERROR)
        arguments[key.strip()] = typed(value, name, key.strip(), schemas)
    return ToolCall(name, arguments)
