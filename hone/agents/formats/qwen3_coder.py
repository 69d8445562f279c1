"""Qwen3-Coder's format: <function=NAME> with one <parameter=NAME> per argument, its value as bare text."""

from __future__ import annotations

import re

from hone.agents.formats.call import Said, Schemas, ToolCall, after_thinking, typed

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*?)(?:</function>|$)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)


def parse(text: str, schemas: Schemas) -> Said:
    thought, rest = after_thinking(text)
    calls = tuple(_call(match[1], schemas) for match in CALL.finditer(rest))
    return Said((thought + CALL.sub("", rest)).strip() if calls else text, calls)


def _call(body: str, schemas: Schemas) -> ToolCall:
    function = FUNCTION.search(body)
    if function is None:
        return ToolCall("", {}, "a call is <function=NAME><parameter=NAME>value</parameter>...</function>")
    name = function[1].strip()
    arguments = {
        found[1].strip(): typed(found[2], name, found[1].strip(), schemas) for found in PARAMETER.finditer(function[2])
    }
    return ToolCall(name, arguments)
