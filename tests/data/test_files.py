import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.data import read_rows
from hone.errors import UserError

RECORDS = [{"prompt": f"p{i}", "n": i, "nested": {"list": [i, i + 1]}} for i in range(5)]


def write(path, records):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    else:
        path.write_text(json.dumps(records, indent=1))
    return path


@pytest.mark.parametrize("ending", ["parquet", "json", "jsonl"])
def test_every_format_gives_back_the_rows_that_were_written(tmp_path, ending):
    rows = read_rows(str(write(tmp_path / f"a.{ending}", RECORDS)))
    assert list(rows) == RECORDS
    assert rows[1:3] == RECORDS[1:3]
    assert list(rows.column("n")) == [0, 1, 2, 3, 4]


def test_a_json_ending_with_one_object_a_line_is_read_as_lines(tmp_path):
    path = tmp_path / "lines.json"
    path.write_text("\n".join(json.dumps(record) for record in RECORDS))
    assert list(read_rows(path)) == RECORDS


def test_json_rows_may_differ_in_type_and_hold_unusual_line_separators(tmp_path):
    records = [{"x": 1, "text": "a\u2028b"}, {"x": "one", "date": "2020-01-01"}]
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), encoding="utf-8")
    assert list(read_rows(path)) == records


def test_several_files_are_one_sequence_and_errors_name_the_row_inside_its_file(tmp_path):
    first, second = write(tmp_path / "a.parquet", RECORDS[:2]), write(tmp_path / "b.jsonl", RECORDS[2:])
    rows = read_rows([first, str(second)])
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows.where(1) == f"{first}, row 1"
    assert rows.where(2) == f"{second}, row 0"


def test_an_empty_file_between_others_shifts_nothing(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    rows = read_rows([write(tmp_path / "a.json", RECORDS[:2]), empty, write(tmp_path / "b.json", RECORDS[2:])])
    assert list(rows) == RECORDS


def test_a_column_that_one_file_lacks_is_none_there(tmp_path):
    rows = read_rows([write(tmp_path / "a.json", [{"x": 1}]), write(tmp_path / "b.parquet", [{"y": 2}])])
    assert list(rows.column("y")) == [None, 2]


def test_the_home_directory_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.parquet", RECORDS)
    assert len(read_rows("~/a.parquet")) == 5


def test_a_missing_file_an_unknown_ending_and_no_file_are_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.parquet does not exist"):
        read_rows(tmp_path / "gone.parquet")
    with pytest.raises(UserError, match=r"ending '\.csv': expected one of \.parquet, \.json, \.jsonl"):
        read_rows(tmp_path / "a.csv")
    with pytest.raises(UserError, match="No data file"):
        read_rows([])


def test_a_missing_column_names_the_key_and_the_columns_that_exist(tmp_path):
    rows = read_rows([write(tmp_path / "a.json", RECORDS), write(tmp_path / "b.parquet", [{"question": "q"}])])
    with pytest.raises(UserError, match=r"b\.parquet has no column 'prompt' \(data\.prompt_key\).*question"):
        rows.require("prompt", "data.prompt_key")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl, line 2 is not valid JSON"),
        ("a.jsonl", '{"a": 1}\n3\n', "a.jsonl, line 2 holds a value of type int"),
        ("a.json", '[{"a": 1}, [2]]', "a.json, row 1 holds a value of type list"),
        ("a.json", '[{"a": 1}', "a.json is not valid JSON"),
        ("a.parquet", "not parquet", "a.parquet is not a readable parquet file"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_rows(tmp_path / name)


def test_a_file_that_is_not_utf8_is_refused_with_its_name(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "caf\xe9"}')
    with pytest.raises(UserError, match=r"a\.jsonl is not UTF-8 text"):
        read_rows(tmp_path / "a.jsonl")


@pytest.mark.parametrize("record", [{"other": 1}, {"prompt": None}])
def test_a_value_that_a_row_lacks_names_file_row_column_and_key(tmp_path, record):
    rows = read_rows([write(tmp_path / "a.json", RECORDS[:2]), write(tmp_path / "b.jsonl", [RECORDS[2], record])])
    assert rows[2].value("prompt", "data.prompt_key") == "p2"
    with pytest.raises(UserError, match=r"b\.jsonl, row 1: .*column 'prompt' \(data\.prompt_key\)"):
        rows[3].value("prompt", "data.prompt_key")


def test_a_value_of_the_wrong_kind_names_file_row_and_column(tmp_path):
    row = read_rows(write(tmp_path / "a.jsonl", [{"answer": 3, "extra_info": "x", "empty": None, "no": ""}]))[0]
    with pytest.raises(UserError, match=r"a\.jsonl, row 0, column 'answer': expected a text, found 3"):
        row.text("answer", "data.response_key")
    with pytest.raises(UserError, match=r"a\.jsonl, row 0, column 'extra_info': expected an object.*found 'x'"):
        row.mapping("extra_info")
    assert row.mapping("empty") == row.mapping("no") == row.mapping("absent") == {}


def test_damage_inside_a_parquet_file_names_the_file(tmp_path):
    path = write(tmp_path / "a.parquet", [{"text": f"text number {i}"} for i in range(2000)])
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 4000 + whole[4004:])
    with pytest.raises(UserError, match=r"a\.parquet is not a readable parquet file"):
        read_rows(path)


def test_text_in_a_parquet_file_that_is_not_utf8_is_found_when_it_is_opened(tmp_path):
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet is not a readable parquet file.*UTF"):
        read_rows(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_endless_nesting_is_refused_with_its_place(tmp_path, name):
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(UserError, match=rf"{name}.* is not valid JSON: it is nested too deeply"):
        read_rows(tmp_path / name)
    (tmp_path / name).write_text('{"a": 1}\n{"a": ' + "[" * 100_000)
    with pytest.raises(UserError, match=rf"{name}, line 2 is not valid JSON: it is nested too deeply"):
        read_rows(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"{name}(: there are no rows| is empty)"):
        read_rows(tmp_path / name).require("prompt", "data.prompt_key")


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}', encoding="utf-8-sig")
    assert list(read_rows(tmp_path / "a.jsonl")) == [{"a": 1}]
