"""Tools of an MCP server: a small one of our own, started as a program. Needs the package mcp."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hone.agents.formats import ToolCall
from hone.agents.tools import ToolLimits, ToolSession, load_tools
from hone.errors import UserError

SERVER = """
import os, sys
from mcp.server import MCPServer

server = MCPServer("tests")

@server.tool()
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b

@server.tool()
def fail() -> str:
    "Fails."
    raise ValueError("no such thing")

@server.tool()
def leave() -> str:
    "Ends the server."
    os._exit(1)

@server.tool()
def process() -> str:
    "The server's process."
    return str(os.getpid())

server.run()
"""


@pytest.fixture
def program(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "server.py").write_text(SERVER)
    return {"command": sys.executable, "args": [str(tmp_path / "server.py")], "env": {"PYTHONPATH": ":".join(sys.path)}}


def listed(tmp_path: Path, entry: Any) -> str:
    path = tmp_path / "tools.yaml"
    path.write_text(yaml.safe_dump({"tools": [{"mcp": entry}]}))
    return str(path)


def run(tools: Any, *turns: list[ToolCall], limits: ToolLimits | None = None) -> list[list[str]]:
    async def session() -> list[list[str]]:
        async with ToolSession(tools, {}, limits or ToolLimits()) as open_session:
            return [[reply.content for reply in await open_session.run(calls)] for calls in turns]

    return asyncio.run(session())


def add(a: Any, b: int) -> ToolCall:
    return ToolCall("add", {"a": a, "b": b})


@pytest.mark.slow
def test_the_tools_of_a_server_are_called_at_once_over_one_connection(tmp_path: Path, program: dict[str, Any]) -> None:
    pytest.importorskip("mcp")
    tools = load_tools(listed(tmp_path, program))
    assert list(tools) == ["add", "fail", "leave", "process"]
    assert tools["add"].schema["description"] == "Adds two numbers."
    assert set(tools["add"].schema["parameters"]["properties"]) == {"a", "b"}
    process = ToolCall("process", {})
    first, second = run(tools, [add(1, 2), add(3, 4), process], [process])
    assert first == ["3", "7", *second]
    assert run(tools, [add(5, 6)]) == [["11"]]  # another loop: connected anew


@pytest.mark.slow
def test_what_goes_wrong_in_a_server_the_model_reads(tmp_path: Path, program: dict[str, Any]) -> None:
    pytest.importorskip("mcp")
    tools = load_tools(listed(tmp_path, program))
    turns = [[add("x", 1)], [ToolCall("fail", {})], [ToolCall("leave", {})], [add(1, 1)]]
    wrong, failed, left, after = (answers[0] for answers in run(tools, *turns, limits=ToolLimits(seconds=60)))
    assert wrong.startswith("error: ") and "integer" in wrong
    assert failed == "error: Error executing tool fail"
    assert left.startswith("error: ") and after == "2"  # started again


@pytest.mark.slow
def test_servers_from_a_file_in_the_usual_shape_and_a_choice_of_their_tools(
    tmp_path: Path, program: dict[str, Any]
) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"mine": program}}))
    entry = {"mcp_servers_config_path": "servers.json", "tool_selected_list": ["add"]}
    assert list(load_tools(listed(tmp_path, entry))) == ["add"]
    with pytest.raises(UserError, match="no server has multiply; there are add, fail"):
        load_tools(listed(tmp_path, {**entry, "tool_selected_list": ["multiply"]}))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("server.py", "expected a mapping with command or url"),
        ({}, "expected one of command .* and url"),
        ({"command": "a", "url": "b"}, "expected one of command .* and url"),
        ({"command": "a", "port": 3}, "unknown port"),
        ({"mcp_servers_config_path": "nowhere.json"}, "nowhere.json cannot be read"),
        ({"mcp_servers_config_path": "nowhere.json", "port": 3}, "unknown port beside"),
    ],
)
def test_a_mistake_in_an_entry_is_one_message(tmp_path: Path, entry: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"tools\[0\].*{message}"):
        load_tools(listed(tmp_path, entry))


def test_a_program_that_does_not_start_is_one_message(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    with pytest.raises(UserError, match=r"tools\[0\].*the server does not answer"):
        load_tools(listed(tmp_path, {"command": "/no/such/program"}))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UserError, match=r'pip install "hone-rl\[mcp\]"'):
        load_tools(listed(tmp_path, {"command": "true"}))
