"""Products for a calculator: seeded, distinct, and demonstrated as the tool would answer."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hone.agents.formats import hermes
from hone.agents.tools import load_tools
from hone.agents.tools.calculator import calculate
from hone.data.products import CALLING_SHARE, write_products


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    folder = tmp_path_factory.mktemp("products")
    train, test = write_products(folder, train_size=1000, test_size=100, seed=3)
    assert list(load_tools(str(folder / "tools.yaml"))) == ["calculator"]
    return {"train": pq.read_table(train).to_pylist(), "test": pq.read_table(test).to_pylist()}


def test_no_question_stands_twice(rows: dict[str, list[dict]]) -> None:
    questions = [row["prompt"][0]["content"] for split in rows.values() for row in split]
    assert len(questions) == len(set(questions)) == 1100


def test_a_demonstrated_call_gives_what_the_calculator_says(rows: dict[str, list[dict]]) -> None:
    calling = [row for row in rows["train"] if len(row["messages"]) == 4]
    assert len(calling) == pytest.approx(CALLING_SHARE * 1000, abs=60)
    for row in rows["train"]:
        user, *middle, last = row["messages"]
        truth = row["reward_model"]["ground_truth"]
        assert user == row["prompt"][0] and last["content"] == f"#### {truth}"
        assert row["answer"] == "".join(message["content"] for message in row["messages"][1:])
        if middle:
            (call,) = hermes.parse(middle[0]["content"], {}).calls
            assert middle[1] == {"role": "tool", "content": truth}
            assert calculate(call.arguments["expression"]) == truth


def test_the_rows_are_a_function_of_the_seed(tmp_path: Path) -> None:
    files = [
        write_products(tmp_path / name, train_size=20, test_size=5, seed=seed) for name, seed in zip("abc", (1, 1, 2))
    ]
    contents = [[pq.read_table(path).to_pylist() for path in pair] for pair in files]
    assert contents[0] == contents[1] != contents[2]
