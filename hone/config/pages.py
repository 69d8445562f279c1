"""The reference pages: one row for each key of each command, in English and in Chinese, made from the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from .presets import DEFAULT_PRESET, PRESETS
from .schema.chinese import in_chinese
from .schema.expectation import CHINESE, ENGLISH, Words, expectation
from .schema.walk import KeyDoc, document
from .support import NOT_BUILT, hydra_text
from .tree import get
from .validate import reference


@dataclass(frozen=True)
class Language:
    """What a page says around the schema's own texts, which `translate` turns into its language."""

    title: str
    introduction: str
    columns: tuple[str, ...]
    words: Words
    follows: str
    only: str
    top: str
    commands: dict[str, str]
    translate: Callable[[str], str]


IN_ENGLISH = Language(
    title="Configuration reference",
    introduction="""\
Every key of every command: what it accepts, its default and what it means. The keys of a command are set in a YAML file
(`--config-path DIR --config-name NAME`) or on the command line (`KEY=VALUE`). This page is made from the schema by
`hone config docs docs`; in Chinese: [config.zh.md](config.zh.md).

On a command line `hone config explain COMMAND KEY` says the same about one key, and which code reads it;
`hone config show COMMAND` prints a whole configuration with the source of each value, `hone config diff A B` what two
differ in, and `hone config check COMMAND` what would be refused. A default "as `KEY`" follows that key unless it is
set. "This build" names the only values that are accepted where a capability is not built yet.
""",
    columns=("key", "accepts", "default", "meaning"),
    words=ENGLISH,
    follows="as {}",
    only=" This build: only {}.",
    top="Keys of the first level",
    commands={
        "ppo": "reinforcement learning",
        "sft": "supervised fine-tuning",
        "generate": "responses for a file of prompts",
        "eval": "scores for a file of responses",
    },
    translate=str,
)
IN_CHINESE = Language(
    title="配置参考",
    introduction="""\
每个命令的全部键：可取的值、默认值与含义。键可以写在 YAML 文件里（`--config-path DIR --config-name NAME`），
也可以写在命令行上（`KEY=VALUE`）。本页由 `hone config docs docs` 从配置定义生成；英文版见 [config.md](config.md)。

在命令行上，`hone config explain COMMAND KEY` 解释单个键，并指出哪些代码读取它；`hone config show COMMAND`
打印完整的配置和每个值的来源；`hone config diff A B` 列出两份配置的不同之处；`hone config check COMMAND`
列出会被拒绝的内容。默认值写作“同 `KEY`”的键，未设置时取那个键的值。“本版本”一句列出在相应功能尚未实现时
唯一接受的值。
""",
    columns=("键", "可取的值", "默认值", "含义"),
    words=CHINESE,
    follows="同 {}",
    only="本版本只接受 {}。",
    top="第一层的键",
    commands={
        "ppo": "强化学习",
        "sft": "监督微调",
        "generate": "为一个文件中的提示词生成回复",
        "eval": "为一个文件中的回复打分",
    },
    translate=in_chinese,
)


PAGES = {"config.md": IN_ENGLISH, "config.zh.md": IN_CHINESE}


def pages() -> dict[str, str]:
    """{file name: text}"""
    return {name: page(language) for name, language in PAGES.items()}


def page(language: Language) -> str:
    parts = [f"# {language.title}\n\n{language.introduction}"]
    for command in DEFAULT_PRESET:
        parts += [f"## `hone {command}`: {language.commands[command]}\n", *_sections(command, language)]
    return "\n".join(parts)


def _sections(command: str, language: Language) -> Iterator[str]:
    """The keys of a section stand together, those of its sub-sections after them."""
    docs = document(PRESETS[DEFAULT_PRESET[command]].schema)
    leaves = sorted((doc for doc in docs.values() if not doc.section), key=lambda doc: _position(doc, list(docs)))
    for section, inside in groupby(leaves, key=lambda doc: _section_of(doc)):
        heading = f"`{section}`" if section else language.top
        meaning = f"{language.translate(docs[section].meaning)}\n\n" if section else ""
        columns = " | ".join(language.columns)
        rows = "".join(_row(command, doc, language) for doc in inside)
        yield f"### {heading}\n\n{meaning}| {columns} |\n|{'---|' * len(language.columns)}\n{rows}"


def _section_of(doc: KeyDoc) -> str:
    return doc.key.rpartition(".")[0]


def _position(doc: KeyDoc, order: list[str]) -> tuple[int, ...]:
    """Sections in the order of the schema; the root's own keys come last."""
    section = _section_of(doc)
    return (order.index(section), order.index(doc.key)) if section else (len(order), order.index(doc.key))


def _row(command: str, doc: KeyDoc, language: Language) -> str:
    only = [language.only.format(values) for values in _only_values(command, doc.key, language)]
    cells = (
        f"`{doc.key}`",
        expectation(doc.field, language.words),
        _default(doc, language),
        "".join([language.translate(doc.meaning), *only]),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _only_values(command: str, key: str, language: Language) -> Iterator[str]:
    """The values that this build accepts, where it does not accept all of them."""
    for row in NOT_BUILT[command]:
        if row.key == key and row.when is None:
            yield language.words.comma.join(f"`{hydra_text(value)}`" for value in row.works)
        elif key.startswith(f"{row.key}."):  # a whole section that is left as it is
            yield f"`{hydra_text(get(row.works[0], key.removeprefix(row.key + '.')))}`"


def _default(doc: KeyDoc, language: Language) -> str:
    followed = reference(doc.default)
    return language.follows.format(f"`{followed}`") if followed else f"`{hydra_text(doc.default)}`"
