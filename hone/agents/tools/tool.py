"""What a tool is: a schema that the model reads, and what a call of it does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from hone.errors import UserError

NAME = re.compile(r"[\w.:/-]+")
Schema = dict[str, Any]  # name, description, parameters (a JSON schema of an object)


class Tool:
    """Base of tools; one object serves all trajectories of a process, and what belongs to one of them is its state.

    Every method may be `async`; plain ones run in a thread. `schema` is the class's own, for when the file that lists
    the tool gives none.
    """

    schema: Schema | None = None
    keeps_time: bool = False  # true: it limits its calls itself, and no other limit is put on them

    def __init__(self, config: Mapping[str, Any], schema: Schema) -> None:
        self.config = config
        self.schema = schema

    def create(self, **arguments: Any) -> Any:
        """The state of one trajectory, made when it begins. `arguments` are its row's create_kwargs."""
        if arguments:
            raise UserError(f"takes no create_kwargs, and the row gives {', '.join(arguments)}")

    def execute(self, state: Any, arguments: dict[str, Any]) -> Any:
        """A text, a hone.agents.Reply, or anything that JSON can write. What it raises, the model reads; a UserError
        ends the run."""
        raise UserError(f"the tool {type(self).__name__} has no execute(state, arguments): define it")

    def reward(self, state: Any) -> float:
        """Added to the last turn's reward, when the trajectory has ended."""
        return 0.0

    def release(self, state: Any) -> Any:
        """Frees what `create` took; also called when the trajectory ends in an error."""


class FunctionTool(Tool):
    """A function whose arguments are the model's, without a state."""

    def __init__(self, function: Callable[..., Any], schema: Schema) -> None:
        super().__init__({}, schema)
        self.function = function


def function_schema(given: Any, *, where: str) -> Schema:
    """The inner part of `{"type": "function", "function": {...}}`, or what was given without that shell."""
    schema = given.get("function", given) if isinstance(given, Mapping) else given
    expected = "expected name, description and parameters (a JSON schema of an object), with or without type: function"
    if not isinstance(schema, Mapping) or not isinstance(schema.get("name"), str) or not schema["name"]:
        raise UserError(f"{where} has no name: {expected}")
    if not NAME.fullmatch(schema["name"]):
        raise UserError(f"{where}: name is {schema['name']!r:.80}: expected letters, digits and _ - . / :")
    parameters = schema.get("parameters") or {"type": "object", "properties": {}}
    if (problem := _wrong_parameters(parameters)) is not None:
        raise UserError(f"{where}: parameters is {parameters!r:.80}{problem}: {expected}")
    return {"name": schema["name"], "description": str(schema.get("description", "")), "parameters": dict(parameters)}


def _wrong_parameters(parameters: Any) -> str | None:
    """What is wrong with a JSON schema of arguments, as far as it is read here; None for nothing."""
    if not isinstance(parameters, Mapping) or not isinstance(parameters.get("properties", {}), Mapping):
        return ""
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if odd := [name for name, schema in properties.items() if not isinstance(schema, Mapping)]:
        return f", of which {odd[0]!r:.40} is no schema"
    if not isinstance(required, list) or not set(map(str, required)) <= set(properties):
        return ", of which required is no list of names in properties"
    try:
        json.dumps(parameters)
    except (TypeError, ValueError, RecursionError) as problem:
        return f", which JSON cannot write ({problem})"
    return None


def schema_of(function: Callable[..., Any], *, where: str) -> Schema:
    """From the type hints and the docstring (Google's style, with a line for every argument)."""
    from transformers.utils import get_json_schema

    try:
        return function_schema(get_json_schema(function), where=where)
    except UserError:
        raise
    except Exception as problem:  # transformers raises several kinds, each a sentence on the function
        raise UserError(
            f"{where} gives no schema: {problem} Write type hints and a docstring with an `Args:` section, or a "
            "tool_schema beside it."
        ) from problem
