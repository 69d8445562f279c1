"""Masks over three turns for templates of really different shapes: ChatML with calls between tags, Llama 3's headers
with a call as the whole turn, and Qwen3's, which leaves reasoning out of earlier turns. What each turn must have seen
is taken from the template itself, which renders the conversation so far at once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import pytest

from hone.agents import Interaction, Reply, Surroundings, Trajectory, sanity
from hone.agents.conversation import Conversation
from hone.agents.sanity import difference
from hone.rollout.interface import Completion
from tests.agents.chat_models import QWEN3, Script, tokenizer_of
from tests.agents.test_tool_agent import ANSWERS, CALLS, calculator, converse, multi_turn, runs

QUESTION = {"role": "user", "content": "What is 17 * 23?"}


@dataclass(frozen=True)
class Shape:
    family: str
    template: str | None = None
    thought: str = ""

    @property
    def tokenizer(self) -> Any:
        return tokenizer_of(self.family, self.template)

    def call(self, expression: str) -> str:
        return self.thought + CALLS[self.family].format(expression)

    def answer(self, text: str) -> str:
        return self.thought + ANSWERS[self.family].format(text)


SHAPES = {
    "chatml": Shape("hermes"),
    "llama3": Shape("llama3_json"),
    "qwen3": Shape("hermes", QWEN3, "<think>\nhm, a product\n</think>\n\n"),
}


class Curious(Interaction):
    """Asks twice."""

    def create(self) -> list[str]:
        return ["and then?", "really?"]

    def reply(self, state: list[str], messages: Any) -> Reply:
        return Reply(state.pop(0)) if state else Reply(done=True)


def at_once(shape: Shape, messages: list[dict[str, Any]], tools: Any) -> str:
    return str(shape.tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False))


def called(shape: Shape, expression: str) -> dict[str, Any]:
    function = {"name": "calculator", "arguments": {"expression": expression}}
    return {
        "role": "assistant",
        "content": shape.thought.rstrip("\n"),
        "tool_calls": [{"type": "function", "function": function}],
    }


def assert_masks(found: Trajectory, engine: Script) -> None:
    """Ones on the tokens that the engine gave, and on no other: the log-probs and versions tell whose they are."""
    assert [ids for mask, ids in runs(found) if mask] == engine.said
    own = [version != -1 for version in found.versions]
    assert [bool(mask) for mask in found.response_mask] == own == [logprob != 0.0 for logprob in found.logprobs]


@pytest.mark.parametrize("name", SHAPES)
def test_each_turn_is_sampled_behind_what_the_template_writes_at_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shape = SHAPES[name]
    engine = Script(shape.tokenizer, shape.call("17*23"), shape.call("391+1"), shape.answer("392"))
    setup = multi_turn(shape.tokenizer, shape.family)
    sanity._said.clear()
    with caplog.at_level(logging.WARNING):
        found = converse(engine, setup)
    assert_masks(found, engine)
    first, second = (
        [called(shape, e), {"role": "tool", "content": v}] for e, v in (("17*23", "391"), ("391+1", "392"))
    )
    so_far = [[QUESTION], [QUESTION, *first], [QUESTION, *first, *second]]
    expected = [at_once(shape, messages, setup.surroundings.schemas) for messages in so_far]
    assert [shape.tokenizer.decode(ids) for ids in engine.asked] == expected
    assert not caplog.records  # the check agrees


def talk(shape: Shape, **options: Any) -> tuple[Script, Trajectory, list[str]]:
    """A conversation with a user who asks twice more: the engine, the trajectory, and what the template writes at once
    before each turn."""
    around = Surroundings({"calculator": calculator()}, {"curious": Curious({})})
    engine = Script(shape.tokenizer, *(shape.answer(text) for text in ("391", "392", "yes")))
    found = converse(engine, multi_turn(shape.tokenizer, shape.family, around, **options))
    said = [{"role": "assistant", "content": f"{shape.thought}It is {text}."} for text in ("391", "392")]
    asked = [{"role": "user", "content": text} for text in ("and then?", "really?")]
    so_far = [[QUESTION], [QUESTION, said[0], asked[0]], [QUESTION, said[0], asked[0], said[1], asked[1]]]
    return engine, found, [at_once(shape, messages, around.schemas) for messages in so_far]


@pytest.mark.parametrize("name", SHAPES)
def test_turns_that_a_template_rewrites_later_stay_as_they_were_sampled_and_the_check_says_where(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    shape = SHAPES[name]
    sanity._said.clear()
    with caplog.at_level(logging.WARNING):
        engine, found, expected = talk(shape)
    assert_masks(found, engine)
    assert [mask for mask, _ in runs(found)] == [1, 0, 1, 0, 1]
    grown = [shape.tokenizer.decode(ids) for ids in engine.asked]
    if not shape.thought:
        assert grown == expected and not caplog.records
        return
    assert grown[0] == expected[0] and shape.thought in grown[1] and shape.thought not in expected[1]
    place = len(commonprefix([grown[2], expected[2]]))
    assert grown[2][place:].startswith("<think>") and f"the text part after {place}: " in caplog.text
    assert "hm, a product" in caplog.text and "and then?" in grown[1]


@pytest.mark.parametrize("name", SHAPES)
def test_in_the_context_of_inference_ones_cover_the_turns_that_the_template_left_alone(name: str) -> None:
    shape = SHAPES[name]
    engine, found, expected = talk(shape, as_at_inference=True)
    assert [shape.tokenizer.decode(ids) for ids in engine.asked] == expected
    kept = engine.said[-1:] if shape.thought else engine.said
    assert [ids for mask, ids in runs(found) if mask] == kept
    assert found.prompt_ids + found.response_ids == engine.asked[2] + engine.said[2]
    own = [version != -1 for version in found.versions]
    assert [bool(mask) for mask in found.response_mask] == own == [logprob != 0.0 for logprob in found.logprobs]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("change", ["text", "tokens"])
def test_the_check_names_the_first_place_that_differs(name: str, change: str) -> None:
    shape = SHAPES[name]
    text = at_once(shape, [QUESTION, called(shape, "1+1"), {"role": "tool", "content": "2"}], None)
    ids = shape.tokenizer.encode(text, add_special_tokens=False)
    assert difference(shape.tokenizer, ids, text) is None
    place = text.index('"expression"') + 4
    if change == "text":
        found = difference(shape.tokenizer, ids, text[:place] + "_" + text[place + 1 :])
        assert found is not None and found.text and found.place == place
        assert found.grown[sanity.SHOWN] == text[place] and found.rendered[sanity.SHOWN] == "_"
        return
    start = shape.tokenizer.encode(text[: text.index("expression")], add_special_tokens=False)
    letters = [token for letter in "expression" for token in shape.tokenizer.encode(letter, add_special_tokens=False)]
    rest = shape.tokenizer.encode(text[text.index("expression") + 10 :], add_special_tokens=False)
    found = difference(shape.tokenizer, [*start, *letters, *rest], text)
    assert found is not None and not found.text and found.place == len(commonprefix([[*start, *letters, *rest], ids]))


def test_a_conversation_counts_every_token_once() -> None:
    """However turns and answers alternate, columns have one entry a token and room is what is left."""
    talk = Conversation(prompt_ids=[1, 2, 3], most=10, longest=100)
    talk.sampled(Completion([4, 5], [-1.0, -2.0], "stop", [7, 7]))
    assert talk.room == 8 and talk.rendered([6, 7, 8]) and talk.room == 5
    assert not talk.rendered([9] * 5) and talk.room == 5  # no token would fit behind it
    talk.sampled(Completion([9] * 5, [-3.0] * 5, "length", [8] * 5))
    found = talk.trajectory("length")
    assert found.response_mask == [1, 1, 0, 0, 0, 1, 1, 1, 1, 1] and talk.room == 0
    assert found.versions == [7, 7, -1, -1, -1, 8, 8, 8, 8, 8] and found.num_turns == 2
