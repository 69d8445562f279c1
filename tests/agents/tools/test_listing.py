"""The YAML file of tools: classes, functions and built-in ones, and every mistake in it with its place."""

from __future__ import annotations

import asyncio
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from hone.agents.interactions import Interaction, InteractionSession, load_interactions
from hone.agents.tools import FunctionTool, load_tools
from hone.agents.tools.calculator import Calculator
from hone.errors import UserError

CODE = '''
from hone.agents import Interaction, Tool


class Shelf(Tool):
    def __init__(self, config, schema):
        super().__init__(config, schema)
        self.size = config["size"]

    def execute(self, state, arguments): ...


class Described(Tool):
    schema = {"name": "described", "description": "d", "parameters": {"type": "object", "properties": {}}}

    def execute(self, state, arguments): ...


class Plain:
    pass


class Patient(Interaction):
    def reply(self, state, messages): ...


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
    ([{"class_name": "mine.py:"}], r"class_name=mine\.py:: expected FILE\.py:NAME"),
    ([{"class_name": "search", "config": {"corpus": 5}}], r"config\.corpus, files of passages .* finds 5"),
    ([{"class_name": "search", "config": {"corpus": __file__}}], r"is no file of passages: expected an ending"),
    ([{"class_name": "search", "config": {"corpus": __file__, "top_k": True}}], r"search: "),
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


UNFIT = """
from hone.agents import Interaction, Tool


class Idle(Tool):
    schema = {"name": "idle"}


class Short(Tool):
    schema = {"name": "short"}

    def execute(self, state): ...


class Apart(Tool):
    schema = {"name": "apart"}

    def __init__(self, config, schema): ...

    def execute(self, state, arguments): ...


class Static(Tool):
    schema = {"name": "static"}

    @staticmethod
    def execute(state, arguments): ...


class Mute(Interaction): ...


class Short_(Interaction):
    def reply(self, messages): ...
"""
OF_CLASSES = [
    ("tools", "Idle", r"Idle has no execute\(self, state, arguments\): define it"),
    ("tools", "Short", r"Short: expected execute\(self, state, arguments\), and it cannot be called so: too many"),
    ("tools", "Apart", r"Apart: its __init__ does not call super\(\)\.__init__\(config, schema\)"),
    ("interaction", "Mute", r"Mute has no reply\(self, state, messages\): define it"),
    ("interaction", "Short_", r"Short_: expected reply\(self, state, messages\), and it cannot be called so"),
]


@pytest.mark.parametrize(("section", "name", "message"), OF_CLASSES)
def test_a_class_that_lacks_what_it_is_called_by_is_refused_when_the_file_is_read(
    listed: Any, section: str, name: str, message: str
) -> None:
    path = listed({"class_name": f"unfit.py:{name}"}, section=section)
    (Path(path).parent / "unfit.py").write_text(UNFIT)
    with pytest.raises(UserError, match=rf"{section}\[0\]\.class_name=unfit\.py:{message}"):
        (load_tools if section == "tools" else load_interactions)(path)


def test_a_static_method_is_one(listed: Any) -> None:
    path = listed({"class_name": "unfit.py:Static"})
    (Path(path).parent / "unfit.py").write_text(UNFIT)
    assert list(load_tools(path)) == ["static"]


def test_an_interaction_made_without_a_file_says_that_it_has_no_reply() -> None:
    with pytest.raises(UserError, match=r"interaction Interaction has no reply\(state, messages\): define it"):
        Interaction({}).reply(None, [])

    async def session() -> Any:
        async with InteractionSession(("mute", Interaction({})), {}, 5.0) as opened:
            return await opened.reply([])

    with pytest.raises(UserError, match=r"interaction 'mute', reply: .* has no reply"):
        asyncio.run(session())


SCHEMAS = [
    ({"name": "a b"}, r"name is 'a b': expected letters"),
    ({"name": "a", "parameters": {"properties": {"x": 5}}}, r"of which 'x' is no schema"),
    ({"name": "a", "parameters": {"properties": {"x": {}}, "required": "x"}}, r"required is no list of names"),
    ({"name": "a", "parameters": {"properties": {"x": {}}, "required": ["y"]}}, r"required is no list of names in"),
    ({"name": "a", "parameters": {"properties": {"x": {"default": date(2020, 1, 1)}}}}, r"JSON cannot write"),
]


@pytest.mark.parametrize(("schema", "message"), SCHEMAS)
def test_a_schema_that_no_template_could_render_is_refused(listed: Any, schema: dict, message: str) -> None:
    with pytest.raises(UserError, match=rf"tools\[0\]\.tool_schema: .*{message}"):
        load_tools(listed({"class_name": "calculator", "tool_schema": schema}))


TEXTS = {
    "scalar": "5",
    "tab": "tools:\n\t- a",
    "other section": "tool: [{class_name: calculator}]",
    "texts": "tools: [calculator]",
    "a class": "tools: {class_name: calculator}",
    "a tag": "tools: !!python/object/apply:os.system ['ls']",
    "binary": "\x00\x01",
    "two documents": "tools: []\n---\ntools: []",
    "itself": "tools: &a [*a]",
    "deep": "tools: " + "[" * 3000,
}


@pytest.mark.parametrize("text", TEXTS)
def test_whatever_the_file_holds_the_key_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(TEXTS[text])
    with pytest.raises(UserError, match=r"^actor_rollout_ref\.rollout\.multi_turn\.tool_config_path=.*tools\.yaml"):
        load_tools(str(tmp_path / "tools.yaml"))


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
        ([{"name": [1], "class_name": "mine.py:Patient"}], r"interaction\[0\]: name is \[1\]: expected a text"),
        ([{"class_name": "mine.py:Patient"}] * 2, r"another interaction called Patient"),
        ([{"class_name": "mine.py:Patient", "tool_schema": {}}], r"unknown tool_schema"),
    ],
)
def test_a_mistake_in_the_list_of_interactions(listed: Any, entries: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_interactions(listed(*entries, section="interaction"))
