"""Rows that a run could not use are named before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hone.config import load
from hone.data.prompts import PromptDataset
from hone.errors import UserError
from hone.trainers.evaluate import evaluate
from hone.trainers.row_checks import row_check

GOOD = {"prompt": "What?", "data_source": "gsm8k", "reward_model": {"ground_truth": "#### 5"}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"data_source": "unheard-of"}, r"No scorer for data source 'unheard-of'\. Known: .*gsm8k"),
    ({"reward_model": {"ground_truth": "five"}}, "ground truth 'five' .* is not a number"),
    ({"reward_model": {}}, "there is no ground truth"),
]


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        *BAD,
        ({"agent_name": "magic"}, "there is no agent 'magic'; known: .*single_turn"),
        ({"agent_name": "tool_agent"}, r"agent_name is 'tool_agent', which converses: .*multi_turn\.enable=True"),
    ],
)
@pytest.mark.parametrize("truncation", ["error", "left"])
def test_a_row_that_training_could_not_use_is_named(
    bad: dict[str, Any], words: str, truncation: str, tmp_path: Path, tiny_tokenizer: Any
) -> None:
    path = write(tmp_path / "rows.jsonl", GOOD, {**GOOD, **bad})
    with pytest.raises(UserError, match=rf"rows\.jsonl, row 1: {words}"):
        PromptDataset(
            path, tokenizer=tiny_tokenizer, max_prompt_length=100, truncation=truncation,
            check=row_check(scored_by_rules=True),
        )  # fmt: skip


def test_a_reward_function_of_the_users_scores_any_row(tmp_path: Path, tiny_tokenizer: Any) -> None:
    path = write(tmp_path / "rows.jsonl", *({**GOOD, **bad} for bad, _ in BAD))
    check = row_check(scored_by_rules=False)
    assert len(PromptDataset(path, tokenizer=tiny_tokenizer, max_prompt_length=100, check=check)) == 3


@pytest.mark.parametrize(("bad", "words"), BAD)
def test_an_evaluation_names_the_row_too(bad: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", *({**row, "responses": ["#### 5"]} for row in (GOOD, {**GOOD, **bad})))
    with pytest.raises(UserError, match=rf"rows\.jsonl, row 1: {words}"):
        evaluate(load("eval", [f"data.path={path}"]))
