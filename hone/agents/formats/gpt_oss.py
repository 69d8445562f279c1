"""gpt-oss's format (harmony): messages in channels; one whose header says to=functions.NAME is a call."""

from __future__ import annotations

import re

from hone.agents.formats.call import UNREADABLE, Said, Schemas, ToolCall, read_json

MARK = "<|message|>"
END = re.compile(r"<\|(?:end|call|return)\|>")
RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def parse(text: str, schemas: Schemas) -> Said:
    """What the template writes before a turn, <|start|>assistant, is not part of the turn's first message."""
    if MARK not in text:
        return Said(text)
    calls: list[ToolCall] = []
    words: list[str] = []
    thoughts: list[str] = []
    for message in END.split(text):
        header, mark, body = message.partition(MARK)
        if not mark:  # cut before its text
            continue
        recipient, channel = RECIPIENT.search(header), CHANNEL.search(header)
        if recipient:
            calls.append(_call(recipient[1], body))
        else:
            (thoughts if channel and channel[1] == "analysis" else words).append(body)
    return Said("".join(words), tuple(calls), "".join(thoughts))


def _call(name: str, body: str) -> ToolCall:
    try:
        arguments = read_json(body or "{}")
    except UNREADABLE as problem:
        return ToolCall(name, {}, f"the arguments are not valid JSON: {problem}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"the arguments must be an object, not {body:.80}")
    return ToolCall(name, arguments)
