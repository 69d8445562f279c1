import datetime
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hone.data import read_rows
from hone.data.responses import Answers, ResponseFile, check_ending
from hone.errors import UserError

ROWS = [{"prompt": "p0", "n": 0}, {"prompt": "p1", "n": 1, "late": "x"}, {"prompt": "p2", "extra_info": {"k": [1]}}]
RESPONSES = [["a", "b\u2028"], ["c", ""], ["d", "\u4e2d"]]


def source(tmp_path, rows=ROWS):
    path = tmp_path / "source.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return read_rows(path)


def texts(responses):
    return [[{"responses": text} for text in of_row] for of_row in responses]


def written(tmp_path, name, rows, chosen, responses):
    ResponseFile(tmp_path / name, rows, chosen).write(texts(responses))
    assert not list(tmp_path.glob(".*"))
    return list(read_rows(tmp_path / name))


def filled(rows):
    """Every row with every column, as a parquet file has them."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "json"])
def test_every_format_keeps_every_column_of_every_row(tmp_path, ending):
    rows = written(tmp_path, f"out.{ending}", source(tmp_path), [0, 1, 2], RESPONSES)
    expected = [{**row, "responses": answers} for row, answers in zip(ROWS, RESPONSES)]
    assert rows == (filled(expected) if ending == "parquet" else expected)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_the_chosen_rows_are_written_in_their_order_and_earlier_responses_are_replaced(tmp_path, ending):
    rows = source(tmp_path, [{"prompt": f"p{i}", "responses": "old"} for i in range(4)])
    found = written(tmp_path, f"out.{ending}", rows, [1, 3], [["a"], ["b"]])
    assert found == [{"prompt": "p1", "responses": ["a"]}, {"prompt": "p3", "responses": ["b"]}]


def test_a_json_file_is_one_array(tmp_path):
    written(tmp_path, "out.json", source(tmp_path), [0, 2], [["a"], ["b"]])
    assert [row["responses"] for row in json.loads((tmp_path / "out.json").read_text())] == [["a"], ["b"]]


def test_the_column_types_of_a_parquet_source_stay(tmp_path):
    table = pa.table({
        "prompt": ["p0", "p1", "p2"],
        "small": pa.array([1, 2, None], pa.int8()),
        "when": pa.array([1, 2, 3], pa.timestamp("s", "UTC")),
        "pairs": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "source.parquet")
    kept = pq.read_table(tmp_path / "source.parquet").schema
    ResponseFile(tmp_path / "out.parquet", read_rows(tmp_path / "source.parquet"), [2, 0]).write(texts([["a"], ["b"]]))
    out = pq.read_table(tmp_path / "out.parquet")
    assert [out.schema.field(name).type for name in table.column_names] == [field.type for field in kept]
    assert out.column("small").to_pylist() == [None, 1]


UNFIT = {
    "empty objects": [{"x": {}}, {"x": {}}],
    "an empty object inside": [{"x": {"a": [{}]}}],
    "a number and a text": [{"x": 5}, {"x": "5"}],
    "a text and a number inside": [{"x": {"truth": "5"}}, {"x": {"truth": 5}}],
    "a list and a text": [{"x": ["5"]}, {"x": "5"}],
    "a number and a truth value": [{"x": True}, {"x": 1}],
    "a large number": [{"x": 2**70}],
}


@pytest.mark.parametrize("case", list(UNFIT))
def test_a_column_that_parquet_cannot_hold_is_refused_before_there_are_responses_and_jsonl_holds_it(tmp_path, case):
    rows = source(tmp_path, [{"prompt": "p", **row} for row in UNFIT[case]])
    chosen = range(len(rows))
    with pytest.raises(UserError, match=r"source\.jsonl.*column 'x'.*data\.output_path.*\.jsonl"):
        ResponseFile(tmp_path / "out.parquet", rows, chosen)
    answers = [["a"] for _ in chosen]
    assert written(tmp_path, "out.jsonl", rows, chosen, answers) == [{**row, "responses": ["a"]} for row in rows]


@pytest.mark.parametrize("value", [b"\xff", datetime.datetime(2020, 1, 1), [datetime.date(2020, 1, 1)]])
def test_a_value_that_json_cannot_hold_is_refused_before_there_are_responses_and_parquet_holds_it(tmp_path, value):
    pq.write_table(pa.table({"prompt": ["p", "q"], "x": [None, value]}), tmp_path / "source.parquet")
    rows = read_rows(tmp_path / "source.parquet")
    with pytest.raises(UserError, match=r"source\.parquet, row 1, column 'x'.*data\.output_path.*\.parquet"):
        ResponseFile(tmp_path / "out.jsonl", rows, [0, 1])
    assert written(tmp_path, "out.parquet", rows, [1], [["a"]]) == [{"prompt": "q", "x": value, "responses": ["a"]}]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_text_that_no_file_can_hold_is_refused_before_there_are_responses(tmp_path, ending):
    rows = source(tmp_path, [{"prompt": "p"}, {"prompt": "p", "x": "\ud800"}])
    with pytest.raises(UserError, match="column 'x'"):
        ResponseFile(tmp_path / f"out.{ending}", rows, [0, 1])
    ResponseFile(tmp_path / f"out.{ending}", rows, [0])


@pytest.mark.parametrize("name", ["out.csv", "out", "out.PARQUET"])
def test_an_ending_that_could_not_be_read_again_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=rf"data\.output_path=.*{name}.*\.parquet, \.json, \.jsonl"):
        check_ending(tmp_path / name)


def answers(tmp_path, name="out.parquet", rows=None, n=2):
    rows = rows or source(tmp_path)
    return Answers(ResponseFile(tmp_path / name, rows, range(len(rows))), n)


def test_responses_come_back_in_order_and_a_run_that_ends_well_leaves_nothing_else(tmp_path):
    with answers(tmp_path) as kept:
        for prompt, k in [(2, 1), (0, 0), (1, 1), (2, 0), (0, 1), (1, 0)]:
            kept.add(prompt, k, {"responses": RESPONSES[prompt][k]})
        assert kept.complete() == texts(RESPONSES)
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]


TRAJECTORY = {
    "turns": [{"sampled": True, "text": "a"}, {"sampled": False, "text": "\u4e2d"}],
    "num_turns": 1,
    "stop_reason": "length",
    "turn_rewards": [0.5],
    "prompt_ids": [1, 2],
    "response_ids": [3, 4],
    "response_mask": [1, 0],
}


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "json"])
def test_trajectories_stand_beside_the_responses_and_replace_earlier_ones(tmp_path, ending):
    rows = source(tmp_path, [{"prompt": "p", "trajectories": "old"}])
    answers = [{"responses": "a", "trajectories": TRAJECTORY}, {"responses": "", "trajectories": EMPTY}]
    ResponseFile(tmp_path / f"out.{ending}", rows, [0], ("responses", "trajectories")).write([answers])
    (row,) = read_rows(tmp_path / f"out.{ending}")
    assert row == {"prompt": "p", "responses": ["a", ""], "trajectories": [TRAJECTORY, EMPTY]}


EMPTY = {**TRAJECTORY, "turns": [], "turn_rewards": [], "response_ids": [], "response_mask": []}


def test_a_row_is_on_disk_as_soon_as_its_responses_are_all_there(tmp_path):
    with answers(tmp_path) as kept:
        kept.add(1, 0, {"responses": "c"})
        assert list(read_rows(tmp_path / "out.partial.jsonl")) == []
        kept.add(1, 1, {"responses": ""})
        assert list(read_rows(tmp_path / "out.partial.jsonl")) == [{**ROWS[1], "responses": ["c", ""]}]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_dies_leaves_every_response_and_says_where(tmp_path, caplog, error):
    with caplog.at_level(logging.WARNING), pytest.raises(error), answers(tmp_path) as kept:
        kept.add(2, 1, {"responses": "d"})
        kept.add(0, 1, {"responses": "b"})
        kept.add(0, 0, {"responses": "a"})
        raise error
    rows = list(read_rows(tmp_path / "out.partial.jsonl"))
    assert rows == [{**ROWS[0], "responses": ["a", "b"]}, {**ROWS[2], "responses": ["d"]}]
    assert "3 responses" in caplog.text and "out.partial.jsonl" in caplog.text


def test_a_run_that_dies_without_a_response_leaves_nothing(tmp_path, caplog):
    with pytest.raises(RuntimeError), answers(tmp_path):
        raise RuntimeError
    assert not caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["source.jsonl"]


def test_the_next_run_leaves_what_an_earlier_one_left(tmp_path):
    for text in ("first", "second"):
        with pytest.raises(RuntimeError), answers(tmp_path) as kept:
            kept.add(0, 0, {"responses": text})
            raise RuntimeError
    left = [list(read_rows(tmp_path / f"out.partial{n}.jsonl")) for n in ("", "-1")]
    assert [rows[0]["responses"] for rows in left] == [["first"], ["second"]]


def test_what_is_kept_of_a_run_holds_values_that_json_knows_not(tmp_path):
    pq.write_table(pa.table({"prompt": ["p"], "x": [b"\xff"]}), tmp_path / "source.parquet")
    rows = read_rows(tmp_path / "source.parquet")
    with pytest.raises(RuntimeError), answers(tmp_path, rows=rows, n=1) as kept:
        kept.add(0, 0, {"responses": "\u4e2d"})
        raise RuntimeError
    assert read_rows(tmp_path / "out.partial.jsonl")[0]["responses"] == ["\u4e2d"]
