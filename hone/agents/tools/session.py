"""The tools of one trajectory: their states, their calls and their rewards."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

from hone.agents.calling import call as awaited
from hone.agents.formats import ToolCall
from hone.agents.reply import Reply, as_reply
from hone.agents.tools.tool import FunctionTool, Tool
from hone.agents.tools.truncation import Side, shorten
from hone.errors import UserError
from hone.user_code import quote

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolLimits:
    """seconds of a call, calls of one turn (None: any number), and characters of an answer, of which `side` is cut."""

    seconds: float = 60.0
    calls: int | None = None
    characters: int = 256
    side: Side = "middle"


class ToolSession:
    """`async with` creates the tools' states and releases them. `arguments` are the row's, by tool, for `create`."""

    def __init__(self, tools: Mapping[str, Tool], arguments: Mapping[str, dict[str, Any]], limits: ToolLimits) -> None:
        self.tools = tools
        self.arguments = arguments
        self.limits = limits
        self.states: dict[str, Any] = {}

    async def __aenter__(self) -> ToolSession:
        try:
            for name in self.tools:
                self.states[name] = await self._own(name, "create", **self.arguments.get(name, {}))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.states):
            try:
                await self._own(name, "release", self.states.pop(name))
            except UserError as problem:
                _warn_once((name, "release"), f"{problem}; the run goes on")

    async def run(self, calls: Sequence[ToolCall]) -> list[Reply]:
        """The answers to the calls of one turn, which run at once, in their order."""
        return await asyncio.gather(*(self._answer(index, call) for index, call in enumerate(calls)))

    async def reward(self) -> float:
        """What the tools give for the whole trajectory."""
        return sum([await self._reward(name) for name in self.tools])

    async def _reward(self, name: str) -> float:
        value = await self._own(name, "reward", self.states[name])
        if not isinstance(value, Real) or not math.isfinite(value):
            raise UserError(f"tool {name!r}: reward returned {value!r:.80}: expected a finite number")
        return float(value)

    async def _answer(self, index: int, call: ToolCall) -> Reply:
        most = self.limits.calls
        if most is not None and index >= most:
            return _error(f"not run: a turn may call {most} tools")
        if call.error:
            return _error(call.error)
        if call.name not in self.tools:
            return _error(f"there is no tool {call.name!r:.80}; there are {', '.join(self.tools)}")
        if missing := _missing(self.tools[call.name], call.arguments):
            return _error(missing)
        try:
            reply = await self._execute(call)
        except UserError:
            raise
        except (Exception, SystemExit) as problem:
            _warn_once((call.name, type(problem)), f"tool {call.name!r} raised {problem!r:.300}, which the model reads")
            return _error(f"{type(problem).__name__}: {problem}", self.limits)
        return Reply(shorten(reply.content, self.limits.characters, self.limits.side), reply.reward, reply.done)

    async def _execute(self, call: ToolCall) -> Reply:
        tool = self.tools[call.name]
        limit = None if tool.keeps_time else self.limits.seconds
        if isinstance(tool, FunctionTool):
            said = await awaited(partial(tool.function, **call.arguments), limit_s=limit)
        else:
            said = await awaited(tool.execute, self.states[call.name], dict(call.arguments), limit_s=limit)
        try:
            return as_reply(said)
        except (TypeError, ValueError, RecursionError) as problem:  # the model can do nothing about it
            raise UserError(f"tool {call.name!r}: {problem}") from problem

    async def _own(self, name: str, method: str, /, *arguments: Any, **named: Any) -> Any:
        """One of the methods that the model does not call: what goes wrong there is the user's to know."""
        function = getattr(self.tools[name], method)
        try:
            if getattr(type(self.tools[name]), method) is getattr(Tool, method):  # does nothing: no thread for it
                return function(*arguments, **named)
            return await awaited(partial(function, *arguments, **named), limit_s=self.limits.seconds)
        except UserError as problem:
            raise UserError(f"tool {name!r}, {method}: {problem}") from problem
        except (Exception, SystemExit) as problem:
            raise UserError(f"tool {name!r}: {method} failed: {quote(problem, None)}") from problem


def _error(text: str, limits: ToolLimits | None = None) -> Reply:
    return Reply("error: " + (shorten(text, limits.characters, limits.side) if limits else text))


def _missing(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """What is wrong with the names of the arguments, or nothing."""
    parameters = (tool.schema or {}).get("parameters", {})
    known, required = parameters.get("properties", {}), parameters.get("required", [])
    absent = [name for name in required if name not in arguments]
    if absent:
        return f"missing argument {', '.join(map(str, absent))}"
    unknown = [name for name in arguments if name not in known]
    if unknown and parameters.get("additionalProperties", False) is False:
        return f"unknown argument {', '.join(map(repr, unknown)):.200}; there are {', '.join(known) or 'none'}"
    return ""


_warned: set[Hashable] = set()


def _warn_once(what: Hashable, message: str) -> None:
    if what not in _warned:
        _warned.add(what)
        logger.warning(message)
