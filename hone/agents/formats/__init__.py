"""How models write calls of tools. A format is one file with `parse`, and one row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hone.agents.formats import glm, gpt_oss, hermes, llama3_json, qwen3_coder
from hone.agents.formats.call import Parser, Said, Schemas, ToolCall
from hone.errors import UserError

__all__ = ["FORMATS", "Parser", "Said", "Schemas", "ToolCall", "parser_of"]


@dataclass(frozen=True)
class Format:
    """`shown_by` says whether a chat template is written for the format."""

    parse: Parser
    shown_by: Callable[[str], bool]


# In the order in which a template is asked: the first three write <tool_call> too, or could.
FORMATS: dict[str, Format] = {
    "gpt-oss": Format(gpt_oss.parse, lambda template: "<|channel|>" in template),
    "glm": Format(glm.parse, lambda template: "<arg_key>" in template),
    "qwen3_coder": Format(qwen3_coder.parse, lambda template: "<function=" in template),
    "hermes": Format(hermes.parse, lambda template: "<tool_call>" in template),
    "llama3_json": Format(llama3_json.parse, lambda template: '"parameters"' in template or "ipython" in template),
}


def parser_of(name: str, chat_template: str, *, key: str) -> Parser:
    """The parser of a format; `auto` takes the one that the chat template is written for."""
    if name != "auto":
        return FORMATS[name].parse
    for known in FORMATS.values():
        if known.shown_by(chat_template):
            return known.parse
    raise UserError(
        f"{key}=auto: the model's chat template shows no known format of tool calls. Set it to the one that the model "
        f"was trained on: {', '.join(FORMATS)}."
    )
