"""BM25 against its formula written out, and the search tool over files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hone.agents.tools.bm25 import BM25, words
from hone.agents.tools.search import Search
from hone.errors import UserError


def score(query: str, index: int, passages: list[str]) -> float:
    split = [words(passage) for passage in passages]
    mean = sum(map(len, split)) / len(split)
    total = 0.0
    for word in words(query):
        n, f = sum(word in p for p in split), split[index].count(word)
        idf = math.log(1 + (len(split) - n + 0.5) / (n + 0.5))
        total += idf * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * len(split[index]) / mean))
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_best_passages_are_those_of_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    passages = [" ".join(rng.choice(list("abcdefghij"), size=rng.integers(1, 20))) for _ in range(30)]
    query = " ".join(rng.choice(list("abcdefghijkl"), size=3))
    scores = [score(query, i, passages) for i in range(30)]
    found = BM25(passages).search(query, 5)
    best = sorted((s for s in scores if s > 0), reverse=True)[:5]
    assert [scores[i] for i in found] == pytest.approx(best, rel=1e-5)


def test_words_are_of_any_script() -> None:
    assert words("Über-Fälle, 3.5 模型x_y") == ["über", "fälle", "3", "5", "模", "型", "x", "y"]


def test_nothing_is_found_without_a_common_word() -> None:
    assert BM25(["a b"]).search("c", 3) == [] and BM25([]).search("a", 3) == [] and BM25(["", ""]).search("a", 1) == []


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [
        {"title": "Paris", "text": "capital of France"},
        {"text": "Rome is in Italy"},
        {"text": "France has cheese"},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_tool_returns_ranked_passages_with_their_titles(corpus: Path) -> None:
    tool = Search({"corpus": str(corpus), "top_k": 2}, {"name": "search"})
    assert tool.execute(None, {"query": "capital France"}) == "[1] Paris: capital of France\n[2] France has cheese"
    assert tool.execute(None, {"query": "moon"}) == "nothing found"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "search needs config.corpus"),
        ({"corpus": "nowhere.jsonl"}, "finds 'nowhere.jsonl'"),
        ({"corpora": "x"}, "search has no corpora"),
        ({"corpus": "{corpus}", "top_k": 0}, "top_k is 0"),
    ],
)
def test_a_config_that_cannot_be_is_refused(config: dict, message: str, corpus: Path) -> None:
    config = {key: str(corpus) if value == "{corpus}" else value for key, value in config.items()}
    with pytest.raises(UserError, match=message):
        Search(config, {"name": "search"})


def test_a_row_without_text_ends_the_run_with_its_place(corpus: Path) -> None:
    corpus.write_text('{"title": "a"}\n')
    with pytest.raises(UserError, match="row 0: there is no value in column 'text'"):
        Search({"corpus": str(corpus)}, {"name": "search"}).execute(None, {"query": "a"})
