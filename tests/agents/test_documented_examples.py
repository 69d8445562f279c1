"""The examples of docs/tools.md run as they stand."""

from __future__ import annotations

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from hone.agents.formats import ToolCall
from hone.agents.interactions import InteractionSession, load_interactions
from hone.agents.tools import ToolLimits, ToolSession, load_tools
from hone.agents.tools.listing import BUILT_IN, ENTRY
from hone.config.schema.rollout import MultiTurnConfig

TEXT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def shown(beginning: str) -> str:
    """The indented block that begins like this."""
    block = re.search(rf"^ {{4}}{re.escape(beginning)}.*?(?=^\S)", TEXT, flags=re.M | re.S)
    assert block, beginning
    return textwrap.dedent(block[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = "\n".join(f"from hone.agents import {line}" for line in ("Reply, Tool", "Interaction, Reply"))
    blocks = [shown("from hone.agents import Reply, Tool"), shown("from hone.agents import Interaction")]
    (tmp_path / "mine.py").write_text(code + "\n" + blocks[0])
    (tmp_path / "users.py").write_text(blocks[1])
    return tmp_path


def test_the_tools_shown_answer_calls(folder: Path) -> None:
    entries = [{"function": "mine.py:weather"}, {"class_name": "mine.py:Shelf", "config": {"size": 3}}]
    (folder / "tools.yaml").write_text(yaml.safe_dump({"tools": entries}))
    row = yaml.safe_load(shown('{"prompt": "...", "data_source"'))["extra_info"]["tools_kwargs"]["shelf"]

    async def session() -> tuple[list[Any], float]:
        tools = load_tools(str(folder / "tools.yaml"))
        async with ToolSession(tools, {"shelf": row["create_kwargs"]}, ToolLimits()) as open_session:
            calls = [ToolCall("weather", {"city": "Rome"}), ToolCall("shelf", {"thing": "pen"})]
            replies = await open_session.run([*calls, ToolCall("shelf", {"thing": "hat"})])
            return [(reply.content, reply.done) for reply in replies], await open_session.reward()

    assert asyncio.run(session()) == ([("sun in Rome", False), ("2 things", False), ("3 things", True)], 1.0)


def test_the_user_shown_answers_turns(folder: Path) -> None:
    (folder / "users.yaml").write_text(shown("interaction:"))
    interactions = load_interactions(str(folder / "users.yaml"))

    async def session() -> list[tuple[float, bool]]:
        async with InteractionSession(("patient", interactions["patient"]), {"illness": "gout"}, 5.0) as patient:
            said = [await patient.reply([{"role": "assistant", "content": text}]) for text in ("flu?", "gout?")]
            return [(reply.reward, reply.done) for reply in said]

    assert asyncio.run(session()) == [(0.0, False), (1.0, True)]


def test_the_file_shown_has_entries_of_every_kind_and_all_built_in_tools() -> None:
    entries = yaml.safe_load(shown("tools:").replace("...", "text"))["tools"]
    assert all(set(entry) <= set(ENTRY) for entry in entries)
    assert {key for entry in entries for key in entry} == set(ENTRY)
    assert set(BUILT_IN) <= {entry.get("class_name") for entry in entries}


def test_every_key_of_conversations_is_explained() -> None:
    table = TEXT.partition("## Keys")[2].partition("## Tokens")[0]
    assert set(MultiTurnConfig.model_fields) <= set(re.findall(r"`(\w+)`", table))
