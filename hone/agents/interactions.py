"""User simulators: what answers a turn of the model in which it calls no tool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hone.agents.calling import call as awaited
from hone.agents.named import load_named
from hone.agents.reply import Reply, as_reply
from hone.agents.tools.listing import config_of, entries, make, refuse_unknown, require_method
from hone.data.chat import Message
from hone.errors import UserError
from hone.user_code import quote

KEY = "actor_rollout_ref.rollout.multi_turn.interaction_config_path"


class Interaction:
    """Base of interactions; one object serves all trajectories of a process, and what belongs to one is its state.

    Every method may be `async`; plain ones run in a thread. What one raises ends the run.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def create(self, **arguments: Any) -> Any:
        """The state of one trajectory, made when it begins. `arguments` are its row's interaction_kwargs."""
        if arguments:
            raise UserError(f"takes no interaction_kwargs, and the row gives {', '.join(arguments)}")

    def reply(self, state: Any, messages: list[Message]) -> Any:
        """What the user says to the conversation so far, of which the model spoke last: a text, or a hone.agents.Reply,
        which may also reward that turn and end the conversation."""
        raise UserError(f"the interaction {type(self).__name__} has no reply(state, messages): define it")

    def release(self, state: Any) -> Any:
        """Frees what `create` took; also called when the trajectory ends in an error."""


def load_interactions(path: str, *, key: str = KEY) -> dict[str, Interaction]:
    """By name, from a YAML file that `key` names; raises UserError for what it, or the code that it names, lacks."""
    found: dict[str, Interaction] = {}
    for entry, where in entries(path, "interaction", key=key):
        refuse_unknown(entry, ("name", "class_name", "config"), where)
        if not isinstance(entry.get("class_name"), str):
            raise UserError(f"{where}: expected class_name, FILE.py:NAME or package.module.NAME")
        cls = load_named(entry["class_name"], key=f"{where}.class_name", folder=Path(path).expanduser().parent)
        if not (isinstance(cls, type) and issubclass(cls, Interaction)):
            raise UserError(f"{where}.class_name={entry['class_name']} is no subclass of hone.agents.Interaction")
        name = entry.get("name", cls.__name__)
        if not isinstance(name, str):
            raise UserError(f"{where}: name is {name!r:.80}: expected a text")
        if name in found:
            raise UserError(f"{where}: there is another interaction called {name}; names must differ")
        found[name] = make(partial(cls, config_of(entry, where)), f"{where}, class {entry['class_name']}")
        require_method(
            found[name], Interaction, "reply", ("state", "messages"), f"{where}.class_name={entry['class_name']}"
        )
    return found


class InteractionSession:
    """The interaction of one trajectory; `async with` creates its state and releases it. Without one, nobody answers
    and the conversation ends."""

    def __init__(self, chosen: tuple[str, Interaction] | None, arguments: dict[str, Any], limit_s: float) -> None:
        self.name = "" if chosen is None else chosen[0]
        self.interaction = None if chosen is None else chosen[1]
        self.arguments = arguments
        self.limit_s = limit_s
        self.state: Any = None

    async def __aenter__(self) -> InteractionSession:
        if self.interaction is not None:
            self.state = await self._call("create", **self.arguments)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.interaction is not None:
            await self._call("release", self.state)

    async def reply(self, messages: list[Message]) -> Reply:
        if self.interaction is None:
            return Reply(done=True)
        said = await self._call("reply", self.state, list(messages))
        try:
            return as_reply(said)
        except (TypeError, ValueError, RecursionError) as problem:
            raise UserError(f"interaction {self.name!r}: {problem}") from problem

    async def _call(self, method: str, /, *arguments: Any, **named: Any) -> Any:
        try:
            function = getattr(self.interaction, method)
            if getattr(type(self.interaction), method) is getattr(Interaction, method):  # does nothing: no thread
                return function(*arguments, **named)
            return await awaited(partial(function, *arguments, **named), limit_s=self.limit_s)
        except UserError as problem:
            raise UserError(f"interaction {self.name!r}, {method}: {problem}") from problem
        except (Exception, SystemExit) as problem:
            raise UserError(f"interaction {self.name!r}: {method} failed: {quote(problem, None)}") from problem
