"""What is read at the head of a file is what the whole file holds."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.data import heads
from hone.data.files import read_rows
from hone.data.heads import column_problems, head_of, rows_at_least

ROWS = [{"a": i, "b": [i, str(i)] if i % 2 else None, "c": {"d": f"text {i}"}} for i in range(250)]


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([{**row, "b": None} for row in rows]), path, row_group_size=7)
    else:
        text = "\n\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows)
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
@pytest.mark.parametrize("wanted", [0, 1, 120, 1000])
def test_it_is_what_reading_the_file_gives(name: str, count: int, wanted: int, tmp_path: Path) -> None:
    path = write(tmp_path / name, ROWS[:count])
    whole, head = read_rows(path), head_of(path, rows=wanted)
    assert head is not None and head.first == whole[0]
    assert head.columns == whole.sources[0].columns
    assert head.first is not None and head.first.where == whole.where(0)
    assert head.rows == len(whole) if head.whole else min(wanted, len(whole)) <= head.rows <= len(whole)
    if name != "a.jsonl":
        assert head.whole


def test_a_large_array_of_json_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.json", ROWS)
    monkeypatch.setattr(heads, "LARGEST_ARRAY", 100)
    assert head_of(path) is None
    assert not list(column_problems([None], {"data.prompt_key": "nowhere"}))
    assert rows_at_least([None, head_of(write(tmp_path / "a.parquet", ROWS))]) == (250, False)
