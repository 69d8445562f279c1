"""Rows of parquet, json and jsonl files, laid end to end; a row is decoded only when it is asked for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hone.errors import UserError

ENDINGS = (".parquet", ".json", ".jsonl")
MAGIC = b"PAR1"


class Row(dict[str, Any]):
    """One decoded row, which knows its place: whoever misses something in it can say where."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        super().__init__(values)
        self.where = where

    def value(self, column: str, key: str) -> Any:
        """What every row must have; `key` of the configuration names the column."""
        value = self.get(column)
        if value is None:
            raise UserError(f"{self.where}: there is no value in column '{column}' ({key}). Add it, or remove the row.")
        return value

    def inside(self, column: str, key: str, names: Sequence[str]) -> Any:
        """What stands in a column under these names, one inside the other."""
        value = self.value(column, key)
        for name in names:
            if not isinstance(value, dict) or value.get(name) is None:
                raise UserError(f"{self.where}, column '{column}': there is no {name!r} in {value!r:.80}.")
            value = value[name]
        return value

    def text(self, column: str, key: str, names: Sequence[str] = ()) -> str:
        value = self.inside(column, key, names)
        if not isinstance(value, str):
            raise UserError(f"{self.where}, column '{column}': expected a text, found {value!r:.80}.")
        return value

    def mapping(self, column: str) -> dict[str, Any]:
        """An object with named values; empty where the row has none."""
        value = self.get(column) or {}
        if not isinstance(value, dict):
            raise UserError(
                f"{self.where}, column '{column}': expected an object with named values, {{...}}, found {value!r:.80}."
            )
        return value


class Source(Protocol):
    """The rows of one file."""

    columns: list[str]

    def __len__(self) -> int: ...

    def row(self, index: int) -> dict[str, Any]: ...

    def column(self, name: str) -> Iterator[Any]: ...


class ParquetSource:
    def __init__(self, path: Path) -> None:
        try:
            self.table: pa.Table = pq.read_table(path)
            self.table.validate(full=True)  # finds text that is not UTF-8 here, and not when a row is read
        except PermissionError:
            raise
        except (pa.ArrowException, OSError) as problem:
            raise unreadable_parquet(path, problem) from problem
        self.columns: list[str] = self.table.column_names

    def __len__(self) -> int:
        return self.table.num_rows

    def row(self, index: int) -> dict[str, Any]:
        return self.table.slice(index, 1).to_pylist()[0]

    def column(self, name: str) -> Iterator[Any]:
        for chunk in self.table.column(name).chunks:
            yield from (value.as_py() for value in chunk)


def unreadable_parquet(path: Path, problem: Exception) -> UserError:
    """A parquet file begins and ends with four letters, between which its description lies at the end."""
    with path.open("rb") as stream:
        begins = stream.read(len(MAGIC)) == MAGIC
        stream.seek(max(path.stat().st_size - len(MAGIC), 0))
        ends = stream.read() == MAGIC
    if not begins:
        reason = "it holds something else. Name a parquet file, or give this one the ending of what it is"
    elif not ends or path.stat().st_size < 3 * len(MAGIC):
        reason = "it is cut short, its end is missing. Copy or write it again"
    else:
        reason = f"it is damaged ({str(problem).splitlines()[0]:.120}). Copy or write it again"
    return UserError(f"{path} is not a readable parquet file: {reason}.")


class JsonSource:
    """Keeps the text of each row: much smaller than the decoded objects, and rows may differ in their types."""

    def __init__(self, path: Path) -> None:
        text = _read_text(path)
        self.texts = _array_texts(path, text) if text.lstrip().startswith("[") else _line_texts(path, text)
        self.columns: list[str] = list(dict.fromkeys(name for text in self.texts for name in json.loads(text)))

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, index: int) -> dict[str, Any]:
        return json.loads(self.texts[index])

    def column(self, name: str) -> Iterator[Any]:
        return (json.loads(text).get(name) for text in self.texts)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError as problem:
        raise UserError(f"{path} is not UTF-8 text: {problem}.") from problem


def _array_texts(path: Path, text: str) -> list[str]:
    try:
        rows = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise UserError(f"{path} is not valid JSON: {_fault(problem)}.") from problem
    for index, row in enumerate(rows):
        _check_object(row, f"{path}, row {index}")
    return [json.dumps(row) for row in rows]


def _line_texts(path: Path, text: str) -> list[str]:
    # Not splitlines(): a JSON string may hold U+2028 and other characters that it takes for line ends.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    for number, line in lines:
        parse_line(path, number, line)
    return [line for _, line in lines]


def parse_line(path: Path, number: int, line: str) -> dict[str, Any]:
    """The object on a line of jsonl."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as problem:
        raise UserError(
            f"{path}, line {number} is not valid JSON: {_fault(problem)}. Expected one object a line."
        ) from problem
    _check_object(row, f"{path}, line {number}")
    found: dict[str, Any] = row
    return found


def _fault(problem: Exception) -> str:
    return "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)


def _check_object(row: Any, where: str) -> None:
    if not isinstance(row, dict):
        raise UserError(
            f"{where} holds a value of type {type(row).__name__}: expected an object with named columns, {{...}}."
        )


class Rows(Sequence[Row]):
    """The rows of several files under one global index."""

    def __init__(self, paths: list[Path], sources: list[Source]) -> None:
        self.paths = paths
        self.sources = sources
        self.starts = np.cumsum([0, *(len(source) for source in sources)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        file, local = self._locate(index)
        return Row(self.sources[file].row(local), self.where(index))

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        file = int(np.searchsorted(self.starts, index, side="right")) - 1
        return file, int(index - self.starts[file])

    def where(self, index: int) -> str:
        """`FILE, row N` for messages; N counts from 0 inside the file."""
        file, local = self._locate(index)
        return f"{self.paths[file]}, row {local}"

    def column(self, name: str) -> Iterator[Any]:
        """The values of one column in global order; None for the rows of a file that lacks it."""
        for source in self.sources:
            if name in source.columns:
                yield from source.column(name)
            else:
                yield from (None for _ in range(len(source)))

    def require(self, column: str, key: str) -> None:
        """Refuse files without `column`, which the configuration key `key` names, and files that are all empty."""
        if not len(self):
            raise no_rows(self.paths)
        for path, source in zip(self.paths, self.sources):
            if len(source) and column not in source.columns:
                raise no_column(path, column, key, source.columns)


def no_rows(paths: Sequence[Path]) -> UserError:
    return UserError(f"{', '.join(map(str, paths))}: there are no rows. Expected one at least.")


def no_column(path: Path, column: str, key: str, columns: Sequence[str]) -> UserError:
    return UserError(
        f"{path} has no column '{column}' ({key}). Its columns: {', '.join(columns) or 'none'}. "
        f"Set {key} to one of them, or add the column."
    )


def read_rows(paths: str | Path | Sequence[str | Path]) -> Rows:
    """Open one file or several; `~` is expanded and the ending decides the format."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise UserError("No data file was given: expected one path or a list of paths.")
    files = [Path(path).expanduser() for path in given]
    return Rows(files, [_open(path) for path in files])


def _open(path: Path) -> Source:
    check_file(path)
    return ParquetSource(path) if path.suffix == ".parquet" else JsonSource(path)


def check_file(path: Path) -> None:
    """Raises UserError for a file that is not there, or whose ending or emptiness says that it holds no rows."""
    if path.suffix not in ENDINGS:
        raise UserError(f"{path} has the ending '{path.suffix}': expected one of {', '.join(ENDINGS)}.")
    if not path.is_file():
        raise UserError(f"The data file {path} does not exist (the working directory is {Path.cwd()}).")
    if path.suffix == ".parquet" and not path.stat().st_size:
        raise UserError(f"{path} is empty: expected a parquet file, which has a few bytes even without rows.")
