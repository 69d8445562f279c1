"""Tools from the YAML file that `multi_turn.tool_config_path` names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hone.agents.named import load_named
from hone.agents.tools.calculator import Calculator
from hone.agents.tools.mcp import mcp_tools
from hone.agents.tools.python import Python
from hone.agents.tools.search import Search
from hone.agents.tools.tool import FunctionTool, Schema, Tool, function_schema, schema_of
from hone.errors import UserError
from hone.user_code import quote

KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
BUILT_IN: dict[str, type[Tool]] = {"calculator": Calculator, "python": Python, "search": Search}
ENTRY = ("class_name", "function", "mcp", "config", "tool_schema")
KINDS = ENTRY[:3]


def load_tools(path: str, *, key: str = KEY) -> dict[str, Tool]:
    """By name, in the file's order; `key` is where the user named it. Raises UserError for what the file, or the code
    that it names, lacks."""
    tools: dict[str, Tool] = {}
    for entry, where in entries(path, "tools", key=key):
        for tool in _tools_of(entry, where, Path(path).expanduser().parent):
            name = _name(tool)
            if name in tools:
                raise UserError(f"{where}: there is another tool called {name}; names must differ")
            tools[name] = tool
    return tools


def entries(path: str, section: str, *, key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """(entry, its place for messages) of the list `section` of a YAML file that `key` names."""
    try:
        content = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as problem:
        raise UserError(f"{key}={path} cannot be read: {problem}") from problem
    listed = content.get(section) if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise UserError(f"{key}={path}: expected `{section}:` with a list of entries, `- class_name: ...`")
    for index, entry in enumerate(listed):
        yield entry, f"{path}, {section}[{index}]"


def refuse_unknown(entry: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [str(name) for name in entry if name not in known]
    if unknown:
        raise UserError(f"{where}: unknown {', '.join(unknown)}; expected {', '.join(known)}")


def config_of(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    config = entry.get("config") or {}
    if not isinstance(config, dict):
        raise UserError(f"{where}: config is {config!r:.80}: expected a mapping")
    return {name: value for name, value in config.items() if not (name == "type" and value == "native")}


def _tools_of(entry: dict[str, Any], where: str, folder: Path) -> Iterator[Tool]:
    refuse_unknown(entry, ENTRY, where)
    if len(kinds := [kind for kind in KINDS if kind in entry]) != 1:
        raise UserError(f"{where}: expected one of {', '.join(KINDS)}, and finds {', '.join(kinds) or 'none'}")
    if "mcp" in entry:
        refuse_unknown(entry, ("mcp",), where)
        yield from mcp_tools(entry["mcp"], where, folder)
    elif "function" in entry:
        yield _function(entry, where, folder)
    else:
        yield _object(entry, where, folder)


def _function(entry: dict[str, Any], where: str, folder: Path) -> Tool:
    function = load_named(str(entry["function"]), key=f"{where}.function", folder=folder)
    if not callable(function) or inspect.isclass(function):
        raise UserError(f"{where}.function={entry['function']} is no function; name a class as class_name")
    if entry.get("config"):
        raise UserError(f"{where}: a function takes no config; remove it, or write a class")
    return FunctionTool(function, _schema(entry, lambda place: schema_of(function, where=place), where))


def _object(entry: dict[str, Any], where: str, folder: Path) -> Tool:
    name = str(entry["class_name"])
    if name.startswith("verl."):
        raise UserError(
            f"{where}.class_name={name} is a class of verl's, which is not run here: name a class of your own, or one "
            f"of {', '.join(BUILT_IN)}"
        )
    cls = BUILT_IN[name] if name in BUILT_IN else load_named(name, key=f"{where}.class_name", folder=folder)
    if not (inspect.isclass(cls) and issubclass(cls, Tool)):
        raise UserError(f"{where}.class_name={name} is no subclass of hone.agents.Tool")
    schema = _schema(entry, lambda place: function_schema(cls.schema, where=f"{place}.class_name={name}"), where)
    config = config_of(entry, where)
    tool: Tool = make(lambda: cls(config, schema), f"{where}, class {name}")
    if "schema" not in vars(tool):
        raise UserError(f"{where}.class_name={name}: its __init__ does not call super().__init__(config, schema)")
    require_method(tool, Tool, "execute", ("state", "arguments"), f"{where}.class_name={name}")
    return tool


def require_method(made: object, base: type, method: str, arguments: tuple[str, ...], where: str) -> None:
    """Raises UserError where its class leaves out the one method that the base cannot do without, or the method does
    not take what it is called with."""
    expected = f"{method}(self, {', '.join(arguments)})"
    if getattr(type(made), method) is getattr(base, method):
        raise UserError(f"{where} has no {expected}: define it")
    try:
        inspect.signature(getattr(made, method)).bind(*arguments)
    except TypeError as problem:
        raise UserError(f"{where}: expected {expected}, and it cannot be called so: {problem}") from problem
    except ValueError:  # no signature is known, such as of built-in functions
        pass


def make(build: Callable[[], Any], where: str) -> Any:
    """A tool or an interaction of the user's; what its class raises is one message."""
    try:
        return build()
    except UserError as problem:
        raise UserError(f"{where}: {problem}") from problem
    except (Exception, SystemExit) as problem:
        raise UserError(f"{where} cannot be made: {quote(problem, None)}") from problem


def _schema(entry: dict[str, Any], otherwise: Callable[[str], Schema], where: str) -> Schema:
    given = entry.get("tool_schema")
    return otherwise(where) if given is None else function_schema(given, where=f"{where}.tool_schema")


def _name(tool: Tool) -> str:
    assert tool.schema is not None
    return str(tool.schema["name"])
