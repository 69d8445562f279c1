"""Hermes 2 Pro's format, also that of Qwen2.5 and Qwen3: JSON between <tool_call> and </tool_call>."""

from __future__ import annotations

import re

from hone.agents.formats.call import Said, Schemas, after_thinking, json_call

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def parse(text: str, schemas: Schemas) -> Said:
    thought, rest = after_thinking(text)
    calls = tuple(json_call(match[1]) for match in CALL.finditer(rest))
    return Said((thought + CALL.sub("", rest)).strip() if calls else text, calls)
