"""The reference pages are what the schema says today, and say all of it in Chinese too."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from hone.config.pages import PAGES, pages
from hone.config.presets import DEFAULT_PRESET, PRESETS
from hone.config.schema.chinese import TEXTS, chinese, pairs
from hone.config.schema.walk import KeyDoc, document

DOCS = Path(__file__).parents[2] / "docs"
ALL: list[KeyDoc] = [doc for preset in DEFAULT_PRESET.values() for doc in document(PRESETS[preset].schema).values()]
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_schema_gives(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "run: hone config docs docs"


def test_every_text_has_its_chinese_one_and_no_other_is_kept() -> None:
    wanted = {doc.meaning for doc in ALL}
    assert sorted(wanted - chinese().keys()) == [], "add them to hone/config/schema/zh/"
    assert sorted(chinese().keys() - wanted) == [], "remove them from hone/config/schema/zh/"
    assert [text for text, n in Counter(e for f in TEXTS.glob("*.txt") for e, _ in pairs(f)).items() if n > 1] == []


def test_chinese_texts_are_chinese_sentences() -> None:
    assert [text for text in chinese().values() if not CHINESE.search(text) or not text.endswith("。")] == []


def test_names_in_a_text_are_those_of_its_chinese_one() -> None:
    """Names of keys and values stay as they are: each that is written with an underscore is in both texts."""
    names = re.compile(r"[a-z]\w*_\w+")
    explained = {"use_remove_padding", "rollout_is_mode", "max_prompt_length"}  # said in the Chinese text alone
    for english, text in chinese().items():
        assert set(names.findall(text)) - explained == set(names.findall(english)) - explained, english


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("command", DEFAULT_PRESET)
def test_every_key_of_a_command_has_one_row(command: str, name: str) -> None:
    chapters = dict(re.findall(r"^## `hone (\w+)`.*?\n(.*?)(?=^## |\Z)", pages()[name], flags=re.M | re.S))
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \| .+ \|$", chapters[command].replace("\\|", ""), flags=re.M)
    keys = [key for key, doc in document(PRESETS[DEFAULT_PRESET[command]].schema).items() if not doc.section]
    assert sorted(rows) == sorted(keys)


def test_rows_name_what_follows_and_what_this_build_takes_alone() -> None:
    english, mandarin = pages()["config.md"], pages()["config.zh.md"]
    follows = "| `actor_rollout_ref.rollout.prompt_length` | an integer >= 1 | as `data.max_prompt_length` |"
    assert follows in english and "| 整数 >= 1 | 同 `data.max_prompt_length` |" in mandarin
    assert "This build: only `fsdp`, `fsdp2`." in english and "本版本只接受 `fsdp`、`fsdp2`。" in mandarin
