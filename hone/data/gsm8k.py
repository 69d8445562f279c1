"""Converts a local copy of GSM8K (columns question and answer) to hone's columns."""

from pathlib import Path

from hone.data.files import Row, read_rows
from hone.data.schema import to_row, write_parquet
from hone.errors import UserError

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
QUESTION, ANSWER = "the question of GSM8K", "the worked answer of GSM8K"


def convert_gsm8k(input_file: str | Path, output_file: str | Path, *, split: str) -> int:
    """Write `output_file` (parquet) and return its number of rows; the last `#### x` of an answer is the truth."""
    source = read_rows(input_file)
    source.require("question", QUESTION)
    source.require("answer", ANSWER)
    rows = [_convert(row, index, split) for index, row in enumerate(source)]
    write_parquet(rows, Path(output_file).expanduser())
    return len(rows)


def _convert(row: Row, index: int, split: str) -> dict:
    question, answer = row.text("question", QUESTION), row.text("answer", ANSWER)
    _, marker, truth = answer.rpartition("####")
    if not marker or not truth.strip():
        raise UserError(f"{row.where}: the answer ends without '#### number', which is taken as ground truth.")
    return to_row(
        f"{question} {INSTRUCTION}",
        data_source="openai/gsm8k",
        ground_truth=truth.strip().replace(",", ""),
        answer=answer,
        extra_info={"index": index, "split": split, "question": question},
    )
