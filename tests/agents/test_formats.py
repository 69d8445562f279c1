"""The text of a turn, read in each format: words, calls, and what is wrong with a call."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from hone.agents.formats import FORMATS, Said, ToolCall, parser_of
from hone.errors import UserError
from tests.agents.chat_models import FAMILIES
from tests.shows import shows

SCHEMAS: dict[str, Any] = {
    "add": {"parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "number"}}}},
    "say": {"parameters": {"properties": {"text": {"type": "string"}, "tags": {"type": "array"}}}},
}
ADD, SAY = ToolCall("add", {"a": 1, "b": 2.5}), ToolCall("say", {"text": "7", "tags": ["x", "y"]})
TWO = (ADD, SAY)

READ = {
    "hermes": [
        ("no call", Said("no call")),
        (
            'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}\n</tool_call>\n'
            '<tool_call>{"name": "say", "arguments": {"text": "7", "tags": ["x", "y"]}}</tool_call>',
            Said("Sure.", TWO),
        ),
        (
            '<think>maybe <tool_call>{"name": "no"}</tool_call></think>\n\n'
            '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2.5}}</tool_call>',
            Said('<think>maybe <tool_call>{"name": "no"}</tool_call></think>', (ADD,)),
        ),
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}', Said("", (ADD,))),  # cut by a stop token
        (
            '<tool_call>{"name": "say", "arguments": {"text": "a\nb"}}</tool_call>',
            Said("", (ToolCall("say", {"text": "a\nb"}),)),
        ),
        ('<tool_call>{"name": "now"}</tool_call>', Said("", (ToolCall("now", {}),))),
    ],
    "qwen3_coder": [
        ("no call", Said("no call")),
        (
            "Sure.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2.5\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=say>\n<parameter=text>\n7\n</parameter>\n"
            '<parameter=tags>\n["x", "y"]\n</parameter>\n</function>\n</tool_call>',
            Said("Sure.", TWO),
        ),
        (
            "<tool_call>\n<function=say>\n<parameter=text>\nif a < b:\n    print(1)\n\n</parameter>\n</function>\n"
            "</tool_call>",
            Said("", (ToolCall("say", {"text": "if a < b:\n    print(1)\n"}),)),
        ),
        ("<tool_call><function=now></function></tool_call>", Said("", (ToolCall("now", {}),))),
    ],
    "llama3_json": [
        ("no call", Said("no call")),
        ('{"answer": 3}', Said('{"answer": 3}')),
        ('{"name": "add", "parameters": {"a": 1, "b": 2.5}}', Said("", (ADD,))),
        (
            '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2.5}}; '
            '{"name": "say", "parameters": {"text": "7", "tags": ["x", "y"]}}',
            Said("", TWO),
        ),
        ('{"name": "add", "arguments": {"a": 1, "b": 2.5}}', Said("", (ADD,))),
    ],
    "gpt-oss": [
        ("<|channel|>final<|message|>no call", Said("no call")),
        ("plain words", Said("plain words")),
        (
            "<|channel|>analysis<|message|>let me see<|end|><|start|>assistant<|channel|>commentary to=functions.add "
            '<|constrain|>json<|message|>{"a": 1, "b": 2.5}',
            Said("", (ADD,), "let me see"),
        ),
        (
            '<|channel|>commentary<|message|>Sure.<|end|><|start|>assistant to=functions.say<|channel|>commentary json'
            '<|message|>{"text": "7", "tags": ["x", "y"]}',
            Said("Sure.", (SAY,)),
        ),
        (" to=functions.now<|channel|>commentary<|message|>", Said("", (ToolCall("now", {}),))),
    ],
    "glm": [
        ("no call", Said("no call")),
        (
            "\nSure.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
            "<arg_value>2.5</arg_value>\n</tool_call>\n<tool_call>say<arg_key>text</arg_key><arg_value>7</arg_value>"
            '<arg_key>tags</arg_key><arg_value>["x", "y"]</arg_value></tool_call>',
            Said("Sure.", TWO),
        ),
        ("<tool_call>now</tool_call>", Said("", (ToolCall("now", {}),))),
    ],
}  # fmt: skip
WRONG = [
    ("hermes", "<tool_call>{</tool_call>", "not valid JSON"),
    ("hermes", "<tool_call>[1]</tool_call>", "a call is an object"),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', "a call is an object"),
    ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', '"arguments" must be an object'),
    ("qwen3_coder", "<tool_call>add(1, 2)</tool_call>", "a call is <function="),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1', "not valid JSON"),
    ("llama3_json", '{"name": "add", "parameters": "a"}', '"parameters" must be an object'),
    ("gpt-oss", " to=functions.add<|channel|>commentary<|message|>{a}", "the arguments are not valid JSON"),
    ("gpt-oss", " to=functions.add<|channel|>commentary<|message|>[1]", "the arguments must be an object"),
    ("glm", "<tool_call>add<arg_key>a</arg_key></tool_call>", "an argument is <arg_key>"),
    (
        "glm",
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value>"
        "</tool_call>",
        "each name once",
    ),
]


@pytest.mark.parametrize(("name", "text", "said"), [(name, *case) for name, cases in READ.items() for case in cases])
def test_words_and_calls_of_a_turn(name: str, text: str, said: Said) -> None:
    assert FORMATS[name].parse(text, SCHEMAS) == said


@pytest.mark.parametrize(("name", "text", "error"), WRONG)
def test_a_call_that_cannot_be_read_says_why(name: str, text: str, error: str) -> None:
    (call,) = FORMATS[name].parse(text, SCHEMAS).calls
    assert error in call.error and call.arguments == {}


@pytest.mark.parametrize("name", FORMATS)
def test_nesting_without_end_is_a_mistake_of_the_models(name: str) -> None:
    deep = "[" * 100_000
    texts = {
        "hermes": f'<tool_call>{{"name": "add", "arguments": {deep}</tool_call>',
        "qwen3_coder": f"<tool_call><function=add><parameter=a>{deep}</parameter></function></tool_call>",
        "llama3_json": f'{{"name": "add", "parameters": {deep}',
        "gpt-oss": f" to=functions.add<|message|>{deep}",
        "glm": f"<tool_call>add<arg_key>a</arg_key><arg_value>{deep}</arg_value></tool_call>",
    }
    (call,) = FORMATS[name].parse(texts[name], SCHEMAS).calls
    assert call.error or call.arguments == {"a": deep}


PIECES = [
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=",
    "<function=add>", "</function>", "<parameter=", "<parameter=a>", "</parameter>", "<|start|>", "<|channel|>",
    "<|message|>", "<|end|>", "<|call|>", " to=functions.", "{", "}", "[", '{"name": "add", "parameters": {}}',
    '{"name": 1};', '"name"', "\n", ">", "</think>", "<|python_tag|>", ";", "a", "<", " ", "\\ud800", "1" * 5000, '"',
    "<arg_key></arg_key><arg_value>", "<tool_call><function=a", "<|start|>a<|message|>", "<|channel|>a",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_any_text_is_read(name: str, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        said = FORMATS[name].parse("".join(draw.choices(PIECES, k=draw.randint(0, 40))), SCHEMAS)
        assert isinstance(said.content, str) and isinstance(said.thinking, str)
        assert all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in said.calls)


@pytest.mark.parametrize("name", FORMATS)
def test_a_long_turn_of_nothing_but_marks_is_read_at_once(name: str) -> None:
    for piece in PIECES:
        for begin in (
            "",
            "<tool_call>",
            "<tool_call>x<arg_key>",
            '{"name": ',
            "<|message|>",
            "<tool_call><function=a>",
        ):
            begun = time.process_time()
            FORMATS[name].parse(begin + piece * (20_000 // len(piece)), SCHEMAS)
            assert time.process_time() - begun < 2, (begin, piece)


@pytest.mark.parametrize("name", FORMATS)
def test_a_number_with_thousands_of_digits_is_a_mistake_of_the_models(name: str) -> None:
    long = "1" * 5000
    texts = {
        "hermes": f'<tool_call>{{"name": "add", "arguments": {{"a": {long}}}}}</tool_call>',
        "qwen3_coder": f"<tool_call><function=add><parameter=a>{long}</parameter></function></tool_call>",
        "llama3_json": f'{{"name": "add", "parameters": {{"a": {long}}}}}',
        "gpt-oss": f' to=functions.add<|message|>{{"a": {long}}}',
        "glm": f"<tool_call>add<arg_key>a</arg_key><arg_value>{long}</arg_value></tool_call>",
    }
    (call,) = FORMATS[name].parse(texts[name], SCHEMAS).calls
    assert "4300" in call.error or call.arguments == {"a": long}


@shows("actor_rollout_ref.rollout.multi_turn.format")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_shows_the_format_unless_the_user_names_one(family: str) -> None:
    template = FAMILIES[family].template
    assert parser_of("auto", template, key="format") is FORMATS[family].parse
    assert parser_of("qwen3_coder", template, key="format") is FORMATS["qwen3_coder"].parse


def test_a_template_that_shows_no_format_is_named_with_the_choices() -> None:
    with pytest.raises(UserError, match="format=auto: .* no known format .*hermes"):
        parser_of("auto", "{{ messages }}", key="format")
