"""GLM-4.5's format and its successors': the name, then pairs of <arg_key> and <arg_value>, values as bare text."""

from __future__ import annotations

import re

from hone.agents.formats.call import Said, Schemas, ToolCall, after_thinking, typed

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def parse(text: str, schemas: Schemas) -> Said:
    thought, rest = after_thinking(text)
    calls = tuple(_call(match[1], schemas) for match in CALL.finditer(rest))
    return Said((thought + CALL.sub("", rest)).strip() if calls else text, calls)


def _call(body: str, schemas: Schemas) -> ToolCall:
    name = body.partition("<arg_key>")[0].strip()
    arguments = {key.strip(): typed(value, name, key.strip(), schemas) for key, value in ARGUMENT.findall(body)}
    if body.count("<arg_key>") != len(arguments):
        return ToolCall(name, {}, "an argument is <arg_key>NAME</arg_key><arg_value>value</arg_value>, each name once")
    return ToolCall(name, arguments)
