"""Whether a command can use the data files that it is given, known from their ends and first rows: the same messages
as the run's, before anything is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hone.cli.preflight_rows import check_row
from hone.config.schedules import schedule_problems
from hone.config.schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.data.heads import Head, column_problems, head_of, rows_at_least
from hone.data.order import too_few_rows
from hone.errors import UserError

BATCH = "data.train_batch_size"
Columns = dict[str, str]  # by the keys that name them


@dataclass(frozen=True)
class Reading:
    """What a command reads: the key of its files, the columns that rows must have, and which rows.

    most:  rows that are used, -1: all; shuffled: and they are drawn, so that the first may not be among them
    batch: rows that make a step of training; 0: there is no training
    """

    key: str
    files: list[str]
    columns: Columns
    most: int = -1
    shuffled: bool = False
    batch: int = 0

    @property
    def uses_first_row(self) -> bool:
        return self.most == -1 or not self.shuffled


def data_findings(config: Node, faulty: Collection[str]) -> Iterator[str]:
    """One message for each thing that is wrong with files, columns, first rows and numbers of rows. What rests on a
    `faulty` key is left alone."""
    for reading in _readings(config):
        if reading.key not in faulty:
            yield from _findings(config, reading, faulty)


def _findings(config: Node, reading: Reading, faulty: Collection[str]) -> Iterator[str]:
    heads: list[Head | None] = []
    for path in reading.files:
        try:
            heads.append(head_of(path, rows=reading.batch))
        except (UserError, PermissionError) as problem:
            yield f"{reading.key}: {problem}"
    if len(heads) < len(reading.files):
        return
    columns = {key: name for key, name in reading.columns.items() if key not in faulty}
    missing = [f"{reading.key}: {problem}" for problem in column_problems(heads, columns)]
    yield from missing
    if not missing and columns == reading.columns and reading.uses_first_row:
        yield from _first_row(config, reading.key, heads)
    if not missing and reading.batch:
        yield from _training(reading, heads, faulty)


def _first_row(config: Node, key: str, heads: list[Head | None]) -> Iterator[str]:
    first = next((head.first for head in heads if head is not None and head.first is not None), None)
    try:
        if first is not None and heads[0] is not None:
            check_row(first, config)
    except UserError as problem:
        yield f"{key}: {problem}"


def _training(reading: Reading, heads: list[Head | None], faulty: Collection[str]) -> Iterator[str]:
    """Rows that make no full batch."""
    rows, _ = _rows(reading, heads)
    if BATCH not in faulty and None not in heads and rows < reading.batch:
        yield str(too_few_rows(reading.batch, rows))


def data_remarks(config: Node) -> Iterator[str]:
    """A schedule that does not fit the steps that the rows make, of a configuration without findings: a trial of a few
    steps may well have one."""
    if not isinstance(config, (PPOConfig, SFTConfig)):
        return
    reading = next(reading for reading in _readings(config) if reading.batch)
    rows, whole = _rows(reading, [head_of(path, rows=reading.batch) for path in reading.files])
    trainer = config.trainer
    total = trainer.total_training_steps or (trainer.total_epochs * (rows // reading.batch) if whole else None)
    if total is not None:
        yield from (f"{problem.key}: {problem.wrong}; {problem.fix}" for problem in schedule_problems(config, total))


def _rows(reading: Reading, heads: list[Head | None]) -> tuple[int, bool]:
    """How many are used, and whether that is all that there are: else there are more."""
    rows, whole = rows_at_least(heads)
    return rows if reading.most == -1 else min(rows, reading.most), whole


def _readings(config: Node) -> Iterator[Reading]:
    if isinstance(config, PPOConfig):
        yield from _of_training(config)
    elif isinstance(config, SFTConfig):
        yield from _of_fine_tuning(config)
    elif isinstance(config, GenerationConfig):
        data = config.data
        yield Reading("data.path", [data.path], {"data.prompt_key": data.prompt_key}, data.max_samples)
    elif isinstance(config, EvaluationConfig):
        names = ("response_key", "data_source_key", "reward_model_key")
        columns = {f"data.{name}": str(getattr(config.data, name)) for name in names}
        yield Reading("data.path", [config.data.path], columns)


def _of_training(config: PPOConfig) -> Iterator[Reading]:
    data = config.data
    columns = {"data.prompt_key": data.prompt_key, "data.reward_fn_key": data.reward_fn_key}
    batch, train, val = data.train_batch_size, _listed(data.train_files), _listed(data.val_files)
    yield Reading("data.train_files", train, columns, data.train_max_samples, data.shuffle, batch)
    if val:
        yield Reading("data.val_files", val, columns, data.val_max_samples, data.validation_shuffle)


def _of_fine_tuning(config: SFTConfig) -> Iterator[Reading]:
    data = config.data
    if data.multiturn.enable:
        columns = {"data.messages_key": data.messages_key}
    else:
        columns = {"data.prompt_key": data.prompt_key, "data.response_key": data.response_key}
    batch, train, val = data.train_batch_size, _listed(data.train_files), _listed(data.val_files)
    yield Reading("data.train_files", train, columns, data.train_max_samples, data.shuffle, batch)
    if val:
        yield Reading("data.val_files", val, columns, data.val_max_samples, data.shuffle)


def _listed(files: str | list[str] | None) -> list[str]:
    return [files] if isinstance(files, str) else files or []
