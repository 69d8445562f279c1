"""What a data file says of itself at once, however large it is: columns, number of rows, and its first row. Of parquet
the footer is read and the first row alone, of jsonl as many lines as are needed, and of one large JSON array nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hone.data.files import JsonSource, Row, check_file, no_column, no_rows, parse_line, unreadable_parquet
from hone.errors import UserError

LINES = 100  # of jsonl that are read for their columns
LARGEST_ARRAY = 2**25  # bytes of a JSON array that is read as a whole


@dataclass(frozen=True)
class Head:
    """rows: of the file, or how many there are at least; first: the first row, if there is one
    whole: `rows` and `columns` are those of the whole file
    """

    path: Path
    columns: list[str]
    rows: int
    whole: bool
    first: Row | None


def head_of(path: str | Path, *, rows: int = LINES) -> Head | None:
    """Raises UserError for what is no data file; None for one that only reading it all would tell of. `rows`: how many
    need to be counted."""
    file = Path(path).expanduser()
    check_file(file)
    if file.suffix == ".parquet":
        return _of_parquet(file)
    with file.open("rb") as stream:
        start = stream.read(4096).decode("utf-8-sig", errors="ignore").lstrip()
    if not start.startswith("["):
        return _of_lines(file, max(rows, LINES))
    if file.stat().st_size > LARGEST_ARRAY:
        return None
    source = JsonSource(file)
    first = Row(source.row(0), f"{file}, row 0") if len(source) else None
    return Head(file, source.columns, len(source), True, first)


def _of_parquet(file: Path) -> Head:
    try:
        with pq.ParquetFile(file) as opened:
            columns, rows = opened.schema_arrow.names, opened.metadata.num_rows
            batch = next(opened.iter_batches(batch_size=1), None) if rows else None
            values = batch.to_pylist() if batch is not None else []
    except PermissionError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise unreadable_parquet(file, problem) from problem
    return Head(file, columns, rows, True, Row(values[0], f"{file}, row 0") if values else None)


def _of_lines(file: Path, count: int) -> Head:
    lines = list(islice(_lines(file), count + 1))
    read = [parse_line(file, number, text) for number, text in lines[:LINES]]
    columns = list(dict.fromkeys(name for row in read for name in row))
    first = Row(read[0], f"{file}, row 0") if read else None
    return Head(file, columns, min(len(lines), count), len(lines) <= min(count, LINES), first)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as stream:
            yield from ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
    except UnicodeDecodeError as problem:
        raise UserError(f"{file} is not UTF-8 text: {problem}.") from problem


def column_problems(heads: Sequence[Head | None], columns: Mapping[str, str]) -> Iterator[UserError]:
    """Files without rows, or without a column; `columns` are by the key that names them. A column that the first lines
    of jsonl lack is missing: each of them would need it."""
    known = [head for head in heads if head is not None]
    if len(known) == len(heads) and not any(head.rows for head in known):
        yield no_rows([head.path for head in known])
    for key, column in columns.items():
        for head in known:
            if head.rows and column not in head.columns:
                yield no_column(head.path, column, key, head.columns)


def rows_at_least(heads: Sequence[Head | None]) -> tuple[int, bool]:
    """(rows of all files together, whether that is known to be all of them)"""
    known = [head for head in heads if head is not None]
    return sum(head.rows for head in known), len(known) == len(heads) and all(head.whole for head in known)
