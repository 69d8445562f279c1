"""Conversations: sampled tokens stay as they are, masks cover exactly them, and every limit ends one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import pytest

from hone.agents import LLM, Interaction, MultiTurn, Reply, Surroundings, Tool, Trajectory, make_agent, sanity
from hone.agents.formats import FORMATS
from hone.agents.rendering import Rendering
from hone.agents.tools import Calculator, FunctionTool, ToolLimits
from hone.agents.tools.tool import function_schema
from hone.errors import UserError
from hone.rollout.interface import Sampling
from tests.agents.chat_models import FAMILIES, QWEN, Script, prompt, tokenizer_of
from tests.shows import shows

SECTION = "actor_rollout_ref.rollout.multi_turn"
CALLS = {
    "hermes": '<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{}"}}}}\n</tool_call><|im_end|>',
    "llama3_json": '{{"name": "calculator", "parameters": {{"expression": "{}"}}}}<|eot_id|>',
    "glm": "\n<tool_call>calculator\n<arg_key>expression</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
    "<|observation|>",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.calculator<|channel|>commentary "
    'json<|message|>{{"expression": "{}"}}<|call|>',
}
ANSWERS = {
    "hermes": "It is {}.<|im_end|>",
    "llama3_json": "It is {}.<|eot_id|>",
    "glm": "\nIt is {}.<|user|>",
    "gpt-oss": "<|channel|>final<|message|>It is {}.<|return|>",
}


def calculator() -> Calculator:
    return Calculator({}, function_schema(Calculator.schema, where="calculator"))


def multi_turn(tokenizer: Any, family: str, surroundings: Surroundings | None = None, **options: Any) -> MultiTurn:
    around = surroundings or Surroundings({"calculator": calculator()})
    return MultiTurn(
        tokenizer=tokenizer,
        surroundings=around,
        rendering=Rendering(tokenizer, around.schemas),
        parse=FORMATS[family].parse if around.tools else None,
        **{"limits": ToolLimits(), "max_turns": 10, **options},
    )


def converse(
    engine: Script, setup: MultiTurn, *, most: int = 2000, longest: int | None = None, **row: Any
) -> Trajectory:
    tokenizer = engine.tokenizer
    llm = LLM(engine, Sampling(most), len(tokenizer), tokenizer=tokenizer, max_model_len=longest, multi_turn=setup)
    return asyncio.run(make_agent("tools").run(prompt(tokenizer, tools=setup.surroundings.schemas, **row), llm))


def runs(trajectory: Trajectory) -> list[tuple[int, list[int]]]:
    """(mask, token ids) of each run of equal masks."""
    pairs = zip(trajectory.response_mask, trajectory.response_ids, strict=True)
    return [(mask, [token for _, token in run]) for mask, run in groupby(pairs, key=lambda pair: pair[0])]


@pytest.mark.parametrize("family", FAMILIES)
@shows(f"{SECTION}.enable", f"{SECTION}.enable_tokenization_sanity_check")
def test_masks_cover_exactly_the_sampled_tokens_over_three_turns(family: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = tokenizer_of(family)
    turns = [CALLS[family].format("17*23"), CALLS[family].format("391+1"), ANSWERS[family].format(392)]
    engine = Script(tokenizer, *turns)
    sanity._said.clear()
    with caplog.at_level(logging.INFO):
        trajectory = converse(engine, multi_turn(tokenizer, family))
    found = runs(trajectory)
    assert [mask for mask, _ in found] == [1, 0, 1, 0, 1]
    assert [ids for mask, ids in found if mask] == engine.said
    assert engine.asked[0] == trajectory.prompt_ids
    for turn in (1, 2):  # the model saw what is trained on
        before = sum(len(ids) for _, ids in found[: 2 * turn])
        assert engine.asked[turn] == trajectory.prompt_ids + trajectory.response_ids[:before]
    sampled = [i for i, mask in enumerate(trajectory.response_mask) if mask]
    assert [trajectory.logprobs[i] for i in sampled] == [
        -0.001 * (turn * 1000 + i) for turn, ids in enumerate(engine.said, 1) for i in range(len(ids))
    ]
    assert {v for v, mask in zip(trajectory.versions, trajectory.response_mask, strict=True) if not mask} == {-1}
    assert trajectory.num_turns == 3 and trajectory.stop_reason == "stop" and trajectory.turn_rewards == []
    # One kind of difference only: the script's letters are other tokens of the same text.
    assert [record.levelname for record in caplog.records] == ["INFO"] and "tokens part" in caplog.text


EXPECTED = {
    "hermes": "{call0}\n<|im_start|>user\n<tool_response>\n391\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n{call1}",
    "llama3_json": "{call0}<|start_header_id|>ipython<|end_header_id|>\n\n"
    '"391"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{call1}',
    "glm": "{call0}\n<tool_response>\n391\n</tool_response><|assistant|>{call1}",
    "gpt-oss": "{call0}<|start|>functions.calculator to=assistant<|channel|>commentary<|message|>"
    '"391"<|end|><|start|>assistant{call1}',
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_stands_between_turns_is_what_the_template_writes(family: str) -> None:
    tokenizer = tokenizer_of(family)
    turns = {"call0": CALLS[family].format("17*23"), "call1": ANSWERS[family].format(391)}
    trajectory = converse(Script(tokenizer, *turns.values()), multi_turn(tokenizer, family))
    assert tokenizer.decode(trajectory.response_ids) == EXPECTED[family].format(**turns)


@pytest.mark.parametrize(
    ("family", "end", "after"),
    [
        ("hermes", "<|endoftext|>", "<|endoftext|>\n<|im_start|>user"),  # another end token takes the template's place
        ("hermes", "</tool_call>", "</tool_call><|im_end|>\n<|im_start|>user"),  # a stop token is none
        ("llama3_json", "<|eom_id|>", "<|eom_id|><|start_header_id|>ipython"),
        ("glm", "<|endoftext|>", "<|endoftext|><|observation|>\n<tool_response>"),
    ],
)
def test_turns_that_end_in_another_token_go_on_as_the_template_does(family: str, end: str, after: str) -> None:
    tokenizer = tokenizer_of(family)
    call = CALLS[family].format("1+1")
    call = call[: call.rindex("<|")] + (end if end not in call else "")
    trajectory = converse(Script(tokenizer, call, ANSWERS[family].format(2)), multi_turn(tokenizer, family))
    assert after in tokenizer.decode(trajectory.response_ids)


def test_several_calls_of_a_turn_are_answered_in_their_order_at_once() -> None:
    tokenizer, running = tokenizer_of("hermes"), 0

    async def slow(text: str, seconds: float) -> str:
        nonlocal running
        running += 1
        await asyncio.sleep(seconds)
        assert running == 3
        return text

    schema = {"name": "slow", "parameters": {"properties": {"text": {"type": "string"}, "seconds": {"type": "number"}}}}
    around = Surroundings({"slow": FunctionTool(slow, schema)})
    calls = "".join(
        f'<tool_call>{{"name": "slow", "arguments": {{"text": "{text}", "seconds": {seconds}}}}}</tool_call>'
        for text, seconds in [("a", 0.03), ("b", 0.01), ("c", 0.02)]
    )
    engine = Script(tokenizer, calls + "<|im_end|>", ANSWERS["hermes"].format(1))
    trajectory = converse(engine, multi_turn(tokenizer, "hermes", around))
    answers = "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in "abc")
    assert answers in tokenizer.decode(trajectory.response_ids)


@shows(f"{SECTION}.max_turns")
def test_the_last_turn_that_is_allowed_is_answered_for_its_rewards_and_counts_as_cut() -> None:
    tokenizer = tokenizer_of("hermes")
    engine = Script(tokenizer, *[CALLS["hermes"].format("1+1")] * 5)
    trajectory = converse(engine, multi_turn(tokenizer, "hermes", max_turns=2))
    assert len(engine.said) == trajectory.num_turns == 2
    assert trajectory.stop_reason == "length" and [mask for mask, _ in runs(trajectory)] == [1, 0, 1]


@pytest.mark.parametrize("limit", ["response", "model"])
def test_turns_and_answers_share_the_budget_of_tokens(limit: str) -> None:
    tokenizer, first, last = tokenizer_of("hermes"), CALLS["hermes"].format("1+1"), ANSWERS["hermes"].format(2)
    setup = multi_turn(tokenizer, "hermes")
    whole = converse(Script(tokenizer, first, last), setup)
    lengths = [len(ids) for _, ids in runs(whole)]

    def limited(tokens: int) -> tuple[Script, Trajectory]:
        engine, prompt_tokens = Script(tokenizer, first, last), len(whole.prompt_ids)
        budget = {"most": tokens} if limit == "response" else {"longest": prompt_tokens + tokens}
        return engine, converse(engine, setup, **budget)

    engine, exact = limited(sum(lengths))
    assert exact == whole and engine.limits[1] == lengths[2]
    _, cut = limited(sum(lengths) - 1)
    assert cut.stop_reason == "length" and cut.response_ids == whole.response_ids[:-1]
    _, short = limited(lengths[0] + lengths[1] + 1)  # room for one token
    assert short.response_ids == whole.response_ids[: lengths[0] + lengths[1] + 1]
    _, none = limited(lengths[0] + lengths[1])  # the answer leaves no room: it is not written
    assert none.stop_reason == "length" and none.response_ids == whole.response_ids[: lengths[0]]
    _, less = limited(lengths[0] - 1)
    assert less.stop_reason == "length" and less.num_turns == 1


BAD_CALLS = [
    ('<tool_call>{"name": "calculator", "arguments": {"expression": </tool_call>', "error: the call is not valid JSON"),
    ('<tool_call>{"name": "calculator", "arguments": "1+1"}</tool_call>', 'error: "arguments" must be an object'),
    ('<tool_call>{"tool": "calculator"}</tool_call>', 'error: a call is an object {"name"'),
    (
        '<tool_call>{"name": "oracle", "arguments": {}}</tool_call>',
        "error: there is no tool 'oracle'; there are calculator",
    ),
    ('<tool_call>{"name": "calculator", "arguments": {}}</tool_call>', "error: missing argument expression"),
    (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1", "x": 2}}</tool_call>',
        "error: unknown argument 'x'; there are expression",
    ),
    (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1/0"}}</tool_call>',
        "error: ValueError: division by zero",
    ),
]


@pytest.mark.parametrize(("call", "answer"), BAD_CALLS)
def test_the_model_reads_what_is_wrong_with_a_call_and_goes_on(call: str, answer: str) -> None:
    tokenizer = tokenizer_of("hermes")
    engine = Script(tokenizer, call + "<|im_end|>", ANSWERS["hermes"].format(2))
    trajectory = converse(engine, multi_turn(tokenizer, "hermes", checked=False))
    assert answer in tokenizer.decode(engine.asked[1])
    assert trajectory.stop_reason == "stop" and trajectory.num_turns == 2


ODD = {
    "half a character": ('<tool_call>{"name": "echo", "arguments": {"text": "\\ud800"}}</tool_call>', "?"),
    "the mark": ('<tool_call>{"name": "echo", "arguments": {"text": "honeturnmark"}}</tool_call>', "honeturnmark"),
    "a long number": ('<tool_call>{"name": "echo", "arguments": {"text": ' + "1" * 5000 + "}}</tool_call>", "error: "),
    "brackets": (
        '<tool_call>{"name": "echo", "arguments": {"text": ' + "[" * 900 + "]" * 900 + "}}</tool_call>",
        "error: the",
    ),
    "a name": ('<tool_call>{"name": "\\u0000<|im_end|>", "arguments": {}}</tool_call>', "error: there is no tool"),
    "many": ("<tool_call>" * 300, "error: the call is not valid JSON"),
}


@pytest.mark.parametrize("as_at_inference", [False, True])
@pytest.mark.parametrize("case", ODD)
def test_the_oddest_call_is_answered_in_its_place(case: str, as_at_inference: bool) -> None:
    tokenizer, (call, answer) = tokenizer_of("hermes"), ODD[case]
    echo = FunctionTool(lambda text: text, {"name": "echo", "parameters": {"properties": {"text": {}}}})
    setup = multi_turn(tokenizer, "hermes", Surroundings({"echo": echo}), as_at_inference=as_at_inference)
    engine = Script(tokenizer, call + "<|im_end|>", ANSWERS["hermes"].format(1))
    found = converse(engine, setup, most=40_000)
    said = tokenizer.decode(engine.asked[1][len(engine.asked[0]) :])
    assert f"\n<|im_start|>user\n<tool_response>\n{answer}" in said and found.num_turns == 2


@shows(f"{SECTION}.max_parallel_calls", f"{SECTION}.max_tool_response_length", f"{SECTION}.tool_response_truncate_side")
def test_calls_and_answers_past_their_limits_say_so() -> None:
    tokenizer = tokenizer_of("hermes")
    call = CALLS["hermes"].format("10**20").removesuffix("<|im_end|>")
    engine = Script(tokenizer, call * 2 + "<|im_end|>", ANSWERS["hermes"].format(2))
    converse(engine, multi_turn(tokenizer, "hermes", limits=ToolLimits(calls=1, characters=4, side="right")))
    read = tokenizer.decode(engine.asked[1])
    assert "\n1000...(17 characters cut)...\n" in read and "error: not run: a turn may call 1 tools" in read


class Counter(Tool):
    """Counts the calls of a trajectory, from the row's start."""

    schema = {"name": "count", "description": "", "parameters": {"properties": {"by": {"type": "integer"}}}}

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config or {}, self.schema)
        self.released: list[Any] = []

    def create(self, start: int = 0) -> dict[str, int]:
        return {"count": start}

    async def execute(self, state: dict[str, int], arguments: dict[str, Any]) -> Reply:
        state["count"] += arguments["by"]
        return Reply(str(state["count"]), reward=0.5, done=state["count"] > 100)

    async def reward(self, state: dict[str, int]) -> float:
        return state["count"]

    def release(self, state: dict[str, int]) -> None:
        self.released.append(dict(state))


def counts(*by: int) -> str:
    calls = [f'<tool_call>\n{{"name": "count", "arguments": {{"by": {step}}}}}\n</tool_call>' for step in by]
    return "\n".join(calls) + "<|im_end|>"


def test_tools_have_a_state_in_each_trajectory_and_reward_its_turns_and_its_end() -> None:
    tokenizer, tool = tokenizer_of("hermes"), Counter()
    setup = multi_turn(tokenizer, "hermes", Surroundings({"count": tool}))
    row = {"tools_kwargs": {"count": {"create_kwargs": {"start": 5}}, "other": {"create_kwargs": {}}}}
    with pytest.raises(UserError, match=r"tools_kwargs names the tool 'other'; there are count"):
        converse(Script(tokenizer), setup, **row)
    row["tools_kwargs"]["other"] = None  # as parquet fills it in
    turns = [counts(1, 2), counts(4), ANSWERS["hermes"].format(12)]
    for start in (5, 0):
        found = converse(Script(tokenizer, *turns), setup, **(row if start else {}))
        assert found.turn_rewards == [1.0, 0.5, start + 7]
    assert tool.released == [{"count": 12}, {"count": 7}]


def test_a_tool_may_end_the_conversation() -> None:
    tokenizer = tokenizer_of("hermes")
    engine = Script(tokenizer, counts(101), "more<|im_end|>")
    found = converse(engine, multi_turn(tokenizer, "hermes", Surroundings({"count": Counter()})))
    assert len(engine.said) == 1 and found.stop_reason == "stop" and found.turn_rewards == [0.5 + 101]


def test_states_are_released_when_a_trajectory_fails() -> None:
    tokenizer, tool = tokenizer_of("hermes"), Counter()

    async def broken() -> str:
        raise UserError("the service is gone")

    around = Surroundings({"count": tool, "broken": FunctionTool(broken, {"name": "broken", "parameters": {}})})
    engine = Script(tokenizer, '<tool_call>{"name": "broken", "arguments": {}}</tool_call><|im_end|>')
    with pytest.raises(UserError, match="the service is gone"):
        converse(engine, multi_turn(tokenizer, "hermes", around))
    assert tool.released == [{"count": 0}]


class Patient(Interaction):
    """Asks three times, and rewards answers by their length."""

    def create(self, mood: str = "calm") -> list[str]:
        return [f"{mood}: and then?", "really?", "bye"]

    def reply(self, state: list[str], messages: list[dict[str, Any]]) -> Reply:
        question = state.pop(0)
        return Reply(question, reward=float(len(messages[-1]["content"])), done=not state)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_simulated_user_answers_turns_without_a_call_rewards_them_and_ends(family: str) -> None:
    tokenizer = tokenizer_of(family)
    around = Surroundings({"calculator": calculator()}, {"patient": Patient({}), "other": Patient({})})
    engine = Script(
        tokenizer,
        *(ANSWERS[family].format(i) for i in (1, 22)),
        CALLS[family].format("1+1"),
        ANSWERS[family].format(333),
    )
    setup = multi_turn(tokenizer, family, around)
    with pytest.raises(UserError, match=r"interaction_kwargs.name is missing: expected one of patient, other"):
        converse(engine, setup)
    found = converse(engine, setup, interaction_kwargs={"name": "patient", "mood": "sad"})
    assert [ids for mask, ids in runs(found) if mask] == engine.said
    before = len("\n") if family == "glm" else 0
    assert found.turn_rewards == [before + len("It is 1."), before + len("It is 22."), 0, before + len("It is 333.")]
    read = tokenizer.decode(found.response_ids)
    assert "sad: and then?" in read and "really?" in read and "bye" not in read
    assert found.stop_reason == "stop" and found.num_turns == 4


def test_a_mistake_in_a_simulated_user_ends_the_run_with_its_name() -> None:
    class Rude(Interaction):
        def reply(self, state: Any, messages: Any) -> Any:
            return messages["?"]

    tokenizer = tokenizer_of("hermes")
    setup = multi_turn(tokenizer, "hermes", Surroundings({}, {"rude": Rude({})}))
    with pytest.raises(UserError, match=r"interaction 'rude': reply failed: TypeError"):
        converse(Script(tokenizer, ANSWERS["hermes"].format(1)), setup)


@shows(f"{SECTION}.completion_callback")
def test_the_callback_sees_every_turn_and_may_reward_it_and_end_the_conversation() -> None:
    tokenizer, seen = tokenizer_of("hermes"), []

    def after_turn(sample: Any, messages: list[dict[str, Any]]) -> Reply | None:
        seen.append((sample.ground_truth, messages[-1]["role"], len(messages)))
        return Reply(reward=0.25, done=len(seen) == 2) if len(seen) > 1 else None

    around = Surroundings({"calculator": calculator()}, {}, after_turn)
    engine = Script(tokenizer, *[CALLS["hermes"].format("1+1")] * 3)
    found = converse(engine, multi_turn(tokenizer, "hermes", around))
    assert seen == [("391", "assistant", 2), ("391", "assistant", 4)]
    assert found.turn_rewards == [0.0, 0.25] and found.stop_reason == "stop"


THOUGHT = "<think>hm, a product</think>"


@shows(f"{SECTION}.use_inference_chat_template")
@pytest.mark.parametrize("as_at_inference", [False, True])
def test_reasoning_that_the_template_leaves_out_later_stays_unless_the_context_is_that_of_inference(
    as_at_inference: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tokenizer_of("hermes")
    turns = [THOUGHT + CALLS["hermes"].format("17*23"), ANSWERS["hermes"].format(391)]
    engine = Script(tokenizer, *turns)
    setup = multi_turn(tokenizer, "hermes", Surroundings({"count": Counter(), "calculator": calculator()}),
                       as_at_inference=as_at_inference)  # fmt: skip
    sanity._said.clear()
    with caplog.at_level(logging.WARNING):
        found = converse(engine, setup)
    second = tokenizer.decode(engine.asked[1])
    assert (THOUGHT in second) == (not as_at_inference)
    assert found.prompt_ids + found.response_ids == engine.asked[1] + engine.said[1]
    if as_at_inference:  # what the model did not say like this is not trained on
        assert [mask for mask, _ in runs(found)] == [0, 1] and runs(found)[1][1] == engine.said[1]
        messages = [
            {"role": "user", "content": "What is 17 * 23?"},
            {"role": "assistant", "content": turns[0].removesuffix("<|im_end|>")},
            {"role": "tool", "content": "391"},
        ]
        tools = setup.surroundings.schemas
        at_once = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert second == at_once
        assert not caplog.records
    else:
        assert [mask for mask, _ in runs(found)] == [1, 0, 1]
        assert "the text part" in caplog.text and "hm, a product" in caplog.text


def test_rewards_of_turns_that_are_no_longer_trained_go_to_the_next_one() -> None:
    tokenizer = tokenizer_of("hermes")
    setup = multi_turn(tokenizer, "hermes", Surroundings({"count": Counter()}), as_at_inference=True)
    engine = Script(
        tokenizer, f"{THOUGHT}\n{counts(1)}", f"{THOUGHT}\n{counts(2)}", counts(3), ANSWERS["hermes"].format(1)
    )
    found = converse(engine, setup)
    assert found.num_turns == 4 and sum(found.turn_rewards) == 3 * 0.5 + 6
    assert [mask for mask, _ in runs(found)] == [0, 1, 0, 1] and found.turn_rewards == [1.5, 6]


def test_a_template_without_a_place_for_tools_is_refused() -> None:
    plain = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(UserError, match="no place for a message of the role tool"):
        Rendering(tokenizer_of("hermes", plain), [{"type": "function"}])
    strict = QWEN.replace("{%- if m.role == 'tool' %}", "{%- if m.role == 'tool' %}{{ raise_exception('no tools') }}")
    with pytest.raises(UserError, match="role tool .*no tools"):
        Rendering(tokenizer_of("hermes", strict), [{"type": "function"}])
    Rendering(tokenizer_of("hermes", plain), None)


def test_the_agent_of_conversations_needs_multi_turn() -> None:
    tokenizer = tokenizer_of("hermes")
    with pytest.raises(UserError, match=r"needs .*multi_turn\.enable=True"):
        asyncio.run(make_agent("tool_agent").run(prompt(tokenizer), LLM(Script(tokenizer), Sampling(8))))


@pytest.mark.parametrize("as_at_inference", [False, True])
def test_a_conversation_that_the_template_refuses_at_once_is_trained_unless_it_has_to_be_rendered(
    as_at_inference: bool, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}"
    tokenizer = tokenizer_of("hermes", QWEN.replace("{%- set content", refuse + "{%- set content", 1))
    call = CALLS["hermes"].format("1+1").removesuffix("<|im_end|>")
    engine = Script(tokenizer, call * 2 + "<|im_end|>", ANSWERS["hermes"].format(2))
    setup = multi_turn(tokenizer, "hermes", as_at_inference=as_at_inference)
    sanity._said.clear()
    if as_at_inference:
        with pytest.raises(UserError, match="use_inference_chat_template=True: .*one call only"):
            converse(engine, setup)
    else:
        assert converse(engine, setup).num_turns == 2 and "one call only" in caplog.text
