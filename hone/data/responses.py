"""A file of rows with their responses: whether it can be written is known before there are any, and none is lost."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hone.data.files import ENDINGS, ParquetSource, Row, Rows
from hone.disk import naming
from hone.errors import UserError

logger = logging.getLogger(__name__)

# What an answer may have, and how parquet holds it; a column has a list of them for each row.
ANSWER = {
    "responses": pa.string(),
    "trajectories": pa.struct(
        {
            "turns": pa.list_(pa.struct({"sampled": pa.bool_(), "text": pa.string()})),
            "num_turns": pa.int64(),
            "stop_reason": pa.string(),
            "turn_rewards": pa.list_(pa.float64()),
            "prompt_ids": pa.list_(pa.int32()),
            "response_ids": pa.list_(pa.int32()),
            "response_mask": pa.list_(pa.int8()),
        }
    ),
}
Answer = Mapping[str, Any]  # column -> what one answer has in it: always `responses`, its text
CHUNK = 1000  # rows of responses in one Arrow array, which holds 2 GiB of text at most


def check_ending(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise UserError(
            f"data.output_path={path} has the ending '{path.suffix}', which `hone eval` could not read: expected one "
            f"of {', '.join(ENDINGS)}."
        )


class ResponseFile:
    """The chosen rows with a column of responses, or several of what answers have. What the format cannot hold is
    refused at once, not when all responses are there."""

    def __init__(self, path: Path, rows: Rows, chosen: Iterable[int], columns: Sequence[str] = ("responses",)) -> None:
        self.path = path
        self.rows = rows
        self.chosen = [int(index) for index in chosen]
        self.columns = columns
        self.table = _table(rows, self.chosen, columns) if path.suffix == ".parquet" else None
        if self.table is None:
            for index in self.chosen:
                _check_json(rows[index])

    def write(self, answers: Sequence[list[Answer]]) -> None:
        """Those of each row. All or nothing: a reader never sees half a file."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with naming(temporary):
            if self.table is not None:
                table = self.table
                for name in self.columns:
                    table = table.append_column(name, _lists(answers, name))
                pq.write_table(table, temporary)
            else:
                self._write_json(answers, temporary)
        temporary.replace(self.path)

    def row(self, position: int, answers: Sequence[Answer]) -> dict[str, Any]:
        """The chosen row with its answers."""
        columns = {name: [answer[name] for answer in answers] for name in self.columns}
        return {**self.rows[self.chosen[position]], **columns}

    def _write_json(self, answers: Sequence[list[Answer]], path: Path) -> None:
        start, between, end = ("[\n", ",\n", "\n]\n") if self.path.suffix == ".json" else ("", "\n", "\n")
        with path.open("w", encoding="utf-8") as file:
            file.write(start)
            for position, of_row in enumerate(answers):
                line = json.dumps(self.row(position, of_row), ensure_ascii=False)
                file.write(between + line if position else line)
            file.write(end)


def _table(rows: Rows, chosen: list[int], replaced: Sequence[str]) -> pa.Table:
    if len(rows.sources) == 1 and isinstance(rows.sources[0], ParquetSource):  # the types of its columns stay
        table = rows.sources[0].table
        table = table if chosen == list(range(len(rows))) else table.take(pa.array(chosen, pa.int64()))
        return table.drop_columns([name for name in replaced if name in table.column_names])
    records = [rows[index] for index in chosen]
    names = dict.fromkeys(name for record in records for name in record if name not in replaced)
    files = ", ".join(map(str, rows.paths))
    return pa.table({name: _column(name, [record.get(name) for record in records], files) for name in names})


def _column(name: str, values: list[Any], files: str) -> pa.Array | pa.ChunkedArray:
    try:
        array = pa.array(values)
        # Some types that Arrow has cannot be written: an object without names is one.
        pq.write_table(pa.table({name: array[:0]}), pa.BufferOutputStream())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        raise UserError(
            f"{files}: a parquet file cannot hold the column '{name}': {problem}. Set data.output_path to a file that "
            "ends in .jsonl, or change the column."
        ) from problem
    return array


def _lists(answers: Sequence[list[Answer]], name: str) -> pa.ChunkedArray:
    kind, values = pa.list_(ANSWER[name]), [[answer[name] for answer in of_row] for of_row in answers]
    chunks = [pa.array(values[start : start + CHUNK], kind) for start in range(0, len(values), CHUNK)]
    return pa.chunked_array(chunks, kind)


def _check_json(row: Row) -> None:
    for name, value in row.items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (TypeError, ValueError) as problem:
            raise UserError(
                f"{row.where}, column '{name}': a json file cannot hold {value!r:.80} ({problem}). Set "
                "data.output_path to a file that ends in .parquet, or change the column."
            ) from problem


class Answers:
    """Answers as they come in.

    A row whose responses are all there goes at once to a file of its own kind beside the output, which is left behind,
    and named, where the run dies, and removed where it ends well.
    """

    def __init__(self, output: ResponseFile, n: int) -> None:
        self.output, self.n = output, n
        self.found: list[dict[int, Answer]] = [{} for _ in output.chosen]

    def __enter__(self) -> "Answers":
        self.output.path.parent.mkdir(parents=True, exist_ok=True)
        self.path = _unused(self.output.path)
        self.file = self.path.open("x", encoding="utf-8")
        return self

    def add(self, prompt: int, k: int, answer: Answer) -> None:
        """The k-th of the n answers to the `prompt`-th chosen row."""
        self.found[prompt][k] = answer
        if len(self.found[prompt]) == self.n:
            self._keep(prompt)

    def complete(self) -> list[list[Answer]]:
        """[rows][n] in order."""
        return [[of_row[k] for k in range(self.n)] for of_row in self.found]

    def _keep(self, prompt: int) -> None:
        of_row = self.found[prompt]
        kept = self.output.row(prompt, [of_row[k] for k in sorted(of_row)])
        with naming(self.path):
            self.file.write(json.dumps(kept, default=str) + "\n")  # a value unknown to JSON must not cost the rest
            self.file.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            for prompt, of_row in enumerate(self.found):
                if 0 < len(of_row) < self.n:
                    self._keep(prompt)
        self.file.close()
        total = sum(map(len, self.found))
        if kind is None or not total:
            self.path.unlink()
        else:
            logger.warning("the run did not end; its %d responses, with their rows, are in %s", total, self.path)


def _unused(path: Path) -> Path:
    """`out.partial.jsonl` for out.parquet, numbered where an earlier run left one."""
    names = (f"{path.stem}.partial{f'-{n}' if n else ''}.jsonl" for n in count())
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())
