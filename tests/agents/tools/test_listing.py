"""The YAML file of tools: classes, functions and built-in ones, and every mistake in it with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hone.agents.interactions import load_interactions
from hone.agents.tools import FunctionTool, load_tools
from hone.agents.tools.calculator import Calculator
from hone.errors import UserError

CODE = '''
from hone.agents import Interaction, Tool


class Shelf(Tool):
    def __init__(self, config, schema):
        super().__init__(config, schema)
        self.size = config["size"]


class Described(Tool):
    schema = {"name": "described", "description": "d", "parameters": {"type": "object", "properties": {}}}


class Plain:
    pass


class Patient(Interaction):
    pass


def weather(city: str, days: int = 1) -> str:
    """Tells the weather.

    Args:
        city: where
        days: how many
    """
    return f"sun in {city}"


def undescribed(city):
    return city
'''
SCHEMA = {
    "type": "function",
    "function": {
        "name": "shelf",
        "description": "Keeps things.",
        "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
    },
}


@pytest.fixture
def listed(tmp_path: Path) -> Any:
    """Writes a file with these entries, beside a file of code."""
    (tmp_path / "mine.py").write_text(CODE)

    def write(*entries: Any, section: str = "tools") -> str:
        path = tmp_path / "list.yaml"
        path.write_text(yaml.safe_dump({section: list(entries)}))
        return str(path)

    return write


def test_classes_functions_and_built_in_tools_by_name(
    listed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir("/")  # paths go out from the file
    tools = load_tools(
        listed(
            {"class_name": "calculator"},
            {"class_name": "mine.py:Shelf", "config": {"type": "native", "size": 3}, "tool_schema": SCHEMA},
            {"class_name": f"{tmp_path}/mine.py:Described"},
            {"function": "mine.py:weather"},
            {"function": "math.sqrt", "tool_schema": {"name": "root", "parameters": {"properties": {"x": {}}}}},
        )
    )
    assert list(tools) == ["calculator", "shelf", "described", "weather", "root"]
    assert isinstance(tools["calculator"], Calculator) and isinstance(tools["root"], FunctionTool)
    assert tools["shelf"].schema == SCHEMA["function"] and tools["shelf"].size == 3
    assert tools["shelf"].config == {"size": 3}
    weather = tools["weather"].schema
    assert weather["description"] == "Tells the weather." and weather["parameters"]["required"] == ["city"]
    assert weather["parameters"]["properties"]["days"] == {"type": "integer", "description": "how many"}


def test_the_shape_of_verls_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(
        """
tools:
  - class_name: "hone.agents.tools.Calculator"
    config:
      type: native
    tool_schema:
      type: "function"
      function:
        name: "compute"
        description: "Computes."
        parameters:
          type: "object"
          properties:
            expression:
              type: "string"
          required: ["expression"]
"""
    )
    (tool,) = load_tools(str(tmp_path / "tools.yaml")).values()
    assert isinstance(tool, Calculator) and tool.schema["name"] == "compute"


MISTAKES = [
    ([], r"expected `tools:` with a list of entries"),
    (["calculator"], r"expected `tools:` with a list of entries"),
    ([{"class_name": "calculator", "colour": 1}], r"list\.yaml, tools\[0\]: unknown colour; expected class_name"),
    ([{"config": {}}], r"tools\[0\]: expected one of class_name, function, mcp, and finds none"),
    ([{"class_name": "calculator", "function": "math.sqrt"}], r"and finds class_name, function"),
    ([{"class_name": "calculator"}, {"class_name": "calculator"}], r"\[1\]: there is another tool called calc"),
    ([{"class_name": "calculator", "config": {"digits": 3}}], r"the calculator takes no config, and finds digits"),
    ([{"class_name": "calculator", "config": 3}], r"config is 3: expected a mapping"),
    ([{"class_name": "calculater"}], r"tools\[0\]\.class_name=calculater: expected FILE\.py:NAME or package"),
    ([{"class_name": "mine.py:Shelff"}], r"mine\.py defines no Shelff"),
    ([{"class_name": "other.py:Shelf"}], r"other\.py: there is no such file"),
    ([{"class_name": "no_such_package.Tool"}], r"no_such_package cannot be imported: ModuleNotFoundError"),
    ([{"class_name": "mine.py:Plain", "tool_schema": SCHEMA}], r"mine\.py:Plain is no subclass of hone\.agents\.Tool"),
    ([{"class_name": "mine.py:Shelf", "config": {"size": 1}}], r"class_name=mine\.py:Shelf has no name: expected name"),
    ([{"class_name": "mine.py:Shelf", "tool_schema": SCHEMA}], r"mine\.py:Shelf cannot be made: KeyError: 'size'"),
    ([{"class_name": "mine.py:Shelf", "tool_schema": {"name": "a", "parameters": 3}}], r"tool_schema: parameters is 3"),
    ([{"class_name": "verl.tools.gsm8k_tool.Gsm8kTool"}], r"is a class of verl's.*calculator"),
    ([{"function": "mine.py:Shelf"}], r"mine\.py:Shelf is no function; name a class as class_name"),
    ([{"function": "mine.py:undescribed"}], r"gives no schema: .*[Ww]rite type hints and a docstring"),
    ([{"function": "mine.py:weather", "config": {"a": 1}}], r"a function takes no config"),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "message"), MISTAKES)
def test_a_mistake_is_one_message_with_its_place(listed: Any, entries: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_tools(listed(*entries))


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text("tools: [")
    with pytest.raises(UserError, match=r"multi_turn\.tool_config_path=.*tools\.yaml cannot be read"):
        load_tools(str(path))


def test_interactions_are_listed_by_name(listed: Any) -> None:
    entries = [
        {"class_name": "mine.py:Patient", "config": {"mood": "calm"}},
        {"name": "angry", "class_name": "mine.py:Patient"},
    ]
    found = load_interactions(listed(*entries, section="interaction"))
    assert list(found) == ["Patient", "angry"] and found["Patient"].config == {"mood": "calm"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "a"}], r"interaction\[0\]: expected class_name"),
        ([{"class_name": "mine.py:Plain"}], r"no subclass of hone\.agents\.Interaction"),
        ([{"class_name": "mine.py:Patient"}] * 2, r"another interaction called Patient"),
        ([{"class_name": "mine.py:Patient", "tool_schema": {}}], r"unknown tool_schema"),
    ],
)
def test_a_mistake_in_the_list_of_interactions(listed: Any, entries: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_interactions(listed(*entries, section="interaction"))
