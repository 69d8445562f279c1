"""Tools of MCP servers (Model Context Protocol): programs that are started, or addresses that are connected to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hone.agents.calling import call
from hone.agents.reply import Reply
from hone.agents.tools.tool import Tool, function_schema
from hone.errors import UserError

SERVER = ("command", "args", "env", "cwd", "url")
CONNECT_S = 60.0  # for a server to start and to list its tools


class Server:
    """One server. The connection is made at the first call, lives in a task of its own, since a client must be left by
    the task that entered it, and is made anew when it breaks."""

    def __init__(self, settings: Mapping[str, Any], where: str) -> None:
        self.settings = settings
        self.where = where
        self.task: asyncio.Task[None] | None = None
        self.client: asyncio.Future[Any] | None = None

    def list_tools(self) -> list[Any]:
        return asyncio.run(call(self._listed, limit_s=CONNECT_S))

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        client = await self._connected()
        try:
            return await client.call_tool(name, arguments)
        except Exception:
            self._leave()
            raise

    async def _listed(self) -> list[Any]:
        async with self._open() as client:
            found: list[Any] = []
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found

    def _open(self) -> Any:
        from mcp import Client, StdioServerParameters, stdio_client

        if "url" in self.settings:
            return Client(self.settings["url"])
        program = {name: self.settings[name] for name in SERVER if name in self.settings}
        return Client(stdio_client(StdioServerParameters(**program)))

    async def _connected(self) -> Any:
        loop = asyncio.get_running_loop()
        if self.client is None or self.task is None or self.task.done() or self.client.get_loop() is not loop:
            self.client = loop.create_future()
            self.task = loop.create_task(self._stay(self.client))
        return await asyncio.shield(self.client)

    async def _stay(self, client: asyncio.Future[Any]) -> None:
        try:
            async with self._open() as connected:
                client.set_result(connected)
                await asyncio.Event().wait()
        except Exception as problem:
            if not client.done():
                client.set_exception(problem)

    def _leave(self) -> None:
        if self.task is not None:
            self.task.cancel()
        self.client = self.task = None


class MCPTool(Tool):
    """One tool of a server, without a state of its own."""

    def __init__(self, server: Server, schema: dict[str, Any]) -> None:
        super().__init__({}, schema)
        self.server = server

    async def execute(self, state: Any, arguments: dict[str, Any]) -> Reply:
        assert self.schema is not None
        result = await self.server.call_tool(self.schema["name"], arguments)
        text = "\n".join(_text(block) for block in result.content)
        return Reply(f"error: {text}" if result.is_error else text)


def mcp_tools(entry: Any, where: str, folder: Path) -> Iterator[Tool]:
    """The tools of the servers of one entry: {command, args, env, cwd} or {url}, or a file of them in the shape of
    `mcpServers`; `tool_selected_list` chooses among their tools."""
    if not isinstance(entry, dict):
        raise UserError(f"{where}.mcp is {entry!r:.80}: expected a mapping with command or url")
    chosen = entry.get("tool_selected_list")
    found: list[str] = []
    for settings, place in _servers({k: v for k, v in entry.items() if k != "tool_selected_list"}, where, folder):
        server = Server(settings, place)
        for tool in _listed(server):
            found.append(tool.name)
            if chosen is None or tool.name in chosen:
                given = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                yield MCPTool(server, function_schema(given, where=f"{place}, tool {tool.name}"))
    if chosen is not None and (absent := [name for name in chosen if name not in found]):
        raise UserError(
            f"{where}.mcp.tool_selected_list: no server has {', '.join(absent)}; there are {', '.join(found)}"
        )


def _servers(entry: dict[str, Any], where: str, folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    file = entry.get("mcp_servers_config_path")
    if file is None:
        yield _settings(entry, f"{where}.mcp"), f"{where}.mcp"
        return
    if beside := [str(name) for name in entry if name != "mcp_servers_config_path"]:
        raise UserError(f"{where}.mcp: unknown {', '.join(beside)} beside mcp_servers_config_path")
    path = Path(file).expanduser()
    path = path if path.is_absolute() else folder / path
    try:
        servers = json.loads(path.read_text(encoding="utf-8"))["mcpServers"].items()
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(
            f"{where}.mcp: {path} cannot be read as {{mcpServers: {{NAME: {{...}}}}}}: {problem!r}"
        ) from problem
    for name, settings in servers:
        yield _settings(settings, f"{path}, {name}"), f"{path}, {name}"


def _settings(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or ("command" in given) == ("url" in given):
        raise UserError(f"{where}: expected one of command (a program) and url (an address)")
    if unknown := [str(name) for name in given if name not in SERVER]:
        raise UserError(f"{where}: unknown {', '.join(unknown)}; expected {', '.join(SERVER)}")
    return given


def _listed(server: Server) -> list[Any]:
    try:
        return server.list_tools()
    except ModuleNotFoundError as problem:
        if problem.name != "mcp":
            raise
        raise UserError(f'{server.where}: MCP servers need the package mcp: pip install "hone-rl[mcp]"') from problem
    except Exception as problem:
        raise UserError(f"{server.where}: the server does not answer: {_first(problem)}") from problem


def _first(problem: BaseException) -> str:
    """The innermost of the groups that task groups raise."""
    while isinstance(getattr(problem, "exceptions", None), tuple):
        problem = problem.exceptions[0]  # type: ignore[attr-defined]
    return f"{type(problem).__name__}: {problem}"


def _text(block: Any) -> str:
    return block.text if block.type == "text" else f"({block.type}, which cannot be shown)"
