"""Calls of a trajectory's tools: time, threads, exceptions and lengths."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hone.agents.calling import call
from hone.agents.formats import ToolCall
from hone.agents.reply import Reply
from hone.agents.tools import FunctionTool, Tool, ToolLimits, ToolSession
from hone.agents.tools.truncation import shorten
from hone.errors import UserError
from tests.shows import shows


def run(function: Callable[..., Any], limits: ToolLimits | None = None, **arguments: Any) -> Reply:
    schema = {"name": "tool", "parameters": {"properties": dict.fromkeys(arguments, {})}}

    async def session() -> Reply:
        tools: dict[str, Tool] = {"tool": FunctionTool(function, schema)}
        async with ToolSession(tools, {}, limits or ToolLimits()) as open_session:
            (reply,) = await open_session.run([ToolCall("tool", arguments)])
            return reply

    return asyncio.run(session())


async def numbers(count: int) -> list[int]:
    return list(range(count))


class Numbers:
    async def __call__(self, count: int) -> list[int]:
        return list(range(count))


def raises() -> None:
    raise KeyError("lost")


def leaves() -> None:
    sys.exit(0)


def stops() -> None:
    raise StopIteration


@pytest.mark.parametrize(
    ("function", "arguments", "content"),
    [
        (lambda: "text", {}, "text"),
        (lambda: {"a": [1, "ü"]}, {}, '{"a": [1, "ü"]}'),
        (lambda: None, {}, "null"),
        (numbers, {"count": 3}, "[0, 1, 2]"),
        (Numbers(), {"count": 2}, "[0, 1]"),
        (raises, {}, "error: KeyError: 'lost'"),
        (leaves, {}, "error: RuntimeError: SystemExit: 0"),
        (stops, {}, "error: RuntimeError: StopIteration: "),
    ],
)
def test_what_a_function_returns_or_raises_is_what_the_model_reads(function: Any, arguments: Any, content: str) -> None:
    assert run(function, **arguments) == Reply(content)


def test_a_users_error_ends_the_run() -> None:
    def gone() -> None:
        raise UserError("the index is gone")

    with pytest.raises(UserError, match="the index is gone"):
        run(gone)


@shows("actor_rollout_ref.rollout.multi_turn.tool_timeout")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_past_its_time_is_an_error_that_the_model_reads(asynchronous: bool) -> None:
    ended = threading.Event()

    async def sleeps() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    begun = time.perf_counter()
    reply = run(sleeps if asynchronous else lambda: time.sleep(5), ToolLimits(seconds=0.05))
    assert time.perf_counter() - begun < 2
    assert reply.content == "error: TimeoutError: no answer within 0.05 seconds"
    assert ended.is_set() == asynchronous  # a coroutine is cancelled


def test_a_plain_function_holds_up_nobody() -> None:
    async def together() -> list[Any]:
        return await asyncio.gather(*(call(time.sleep, 0.2, limit_s=5) for _ in range(20)))

    begun = time.perf_counter()
    asyncio.run(together())
    assert time.perf_counter() - begun < 2


def test_what_ended_while_the_loop_rested_is_in_time() -> None:
    loop = asyncio.new_event_loop()
    running = loop.create_task(call(time.sleep, 0.05, limit_s=0.1))
    loop.run_until_complete(asyncio.sleep(0.01))
    time.sleep(0.3)  # the driver is busy
    loop.run_until_complete(running)
    loop.close()


@pytest.mark.parametrize(
    ("side", "limit", "kept"),
    [
        ("left", 3, "...(7 characters cut)...789"),
        ("right", 3, "012...(7 characters cut)..."),
        ("middle", 3, "01...(7 characters cut)...9"),
        ("middle", 1, "0...(9 characters cut)..."),
        ("middle", 10, "0123456789"),
    ],
)
def test_a_long_answer_is_cut_with_a_mark(side: Any, limit: int, kept: str) -> None:
    assert shorten("0123456789", limit, side) == kept
    assert run(lambda: "0123456789", ToolLimits(characters=limit, side=side)).content == kept


def test_a_tools_own_methods_that_fail_end_the_run_with_its_name() -> None:
    class Broken(Tool):
        schema = {"name": "broken", "parameters": {}}

        def __init__(self, part: str) -> None:
            super().__init__({}, self.schema)
            self.part = part

        def create(self, **arguments: Any) -> None:
            if self.part == "create":
                raise OSError("no disk")

        def reward(self, state: Any) -> Any:
            return "much"

    async def session(part: str) -> float:
        async with ToolSession({"broken": Broken(part)}, {}, ToolLimits()) as open_session:
            return await open_session.reward()

    with pytest.raises(UserError, match="tool 'broken': create failed: OSError: no disk"):
        asyncio.run(session("create"))
    with pytest.raises(UserError, match="tool 'broken': reward returned 'much'"):
        asyncio.run(session("reward"))


def test_a_tool_without_a_state_of_its_own_takes_no_arguments_from_rows() -> None:
    async def session() -> None:
        async with ToolSession({"tool": FunctionTool(raises, {"name": "tool"})}, {"tool": {"x": 1}}, ToolLimits()):
            pass

    with pytest.raises(UserError, match="tool 'tool', create: takes no create_kwargs, and the row gives x"):
        asyncio.run(session())


def test_a_tool_without_its_method_ends_the_run_and_is_no_answer_to_the_model() -> None:
    class Forgotten(Tool):
        pass

    async def session() -> None:
        async with ToolSession({"tool": Forgotten({}, {"name": "tool"})}, {}, ToolLimits()) as open_session:
            await open_session.run([ToolCall("tool", {})])

    with pytest.raises(UserError, match=r"the tool Forgotten has no execute\(state, arguments\)"):
        asyncio.run(session())


async def leaves() -> None:
    raise SystemExit(0)


async def cancels() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def interrupts() -> None:
    raise KeyboardInterrupt


def ends() -> None:
    raise GeneratorExit


def cancels_in_a_thread() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("function", [leaves, cancels, interrupts, ends, cancels_in_a_thread])
def test_a_tool_that_raises_what_is_no_exception_takes_nothing_with_it(function: Any) -> None:
    async def bounded() -> Any:
        tools = {"tool": FunctionTool(function, {"name": "tool"})}
        async with ToolSession(tools, {}, ToolLimits()) as session:
            return await asyncio.wait_for(session.run([ToolCall("tool", {})]), 20)

    (reply,) = asyncio.run(bounded())
    assert reply.content.startswith("error: RuntimeError: ") and not reply.done


def test_arguments_may_be_called_like_anything_of_hones() -> None:
    def echo(function: str, limit_s: int, name: str, method: str) -> str:
        return f"{function}{limit_s}{name}{method}"

    names = {name: {} for name in ("function", "limit_s", "name", "method")}
    schema = {"name": "echo", "parameters": {"properties": names}}

    class Named(Tool):
        def create(self, **arguments: Any) -> dict[str, Any]:
            return arguments

        def execute(self, state: Any, arguments: Any) -> Any:
            return sorted(state)

    async def session() -> list[str]:
        tools = {"echo": FunctionTool(echo, schema), "named": Named({}, {"name": "named"})}
        async with ToolSession(tools, {"named": dict(names)}, ToolLimits()) as opened:
            given = {"function": "a", "limit_s": 1, "name": "b", "method": "c"}
            return [reply.content for reply in await opened.run([ToolCall("echo", given), ToolCall("named", {})])]

    assert asyncio.run(session()) == ["a1bc", '["function", "limit_s", "method", "name"]']


def loop_of_lists() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Reply("a", reward="much"), r"tool 'tool': Reply\.reward is 'much'"),  # type: ignore[arg-type]
        (Reply("a", reward=float("nan")), r"Reply\.reward is nan"),
        (Reply(3), r"Reply\.content is 3"),  # type: ignore[arg-type]
        (loop_of_lists(), "Circular reference"),
        ({(1, 2): 3}, "keys must be"),
    ],
)
def test_an_answer_that_cannot_be_ends_the_run_since_the_model_can_do_nothing_about_it(
    value: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(lambda: value)
