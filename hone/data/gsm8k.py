"""Converts a local copy of GSM8K (columns question and answer) to hone's columns."""

from pathlib import Path

from hone.data.files import read_rows
from hone.data.schema import to_row, write_parquet
from hone.errors import UserError

INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def convert_gsm8k(input_file: str | Path, output_file: str | Path, *, split: str) -> int:
    """Write `output_file` (parquet) and return its number of rows; the last `#### x` of an answer is the truth."""
    source = read_rows(input_file)
    source.require("question", "the question of GSM8K")
    source.require("answer", "the worked answer of GSM8K")
    rows = [_convert(source[index], index, split, source.where(index)) for index in range(len(source))]
    write_parquet(rows, Path(output_file).expanduser())
    return len(rows)


def _convert(record: dict, index: int, split: str, where: str) -> dict:
    _, marker, truth = record["answer"].rpartition("####")
    if not marker or not truth.strip():
        raise UserError(f"{where}: the answer ends without '#### number', which is taken as ground truth.")
    return to_row(
        f"{record['question']} {INSTRUCTION}",
        data_source="openai/gsm8k",
        ground_truth=truth.strip().replace(",", ""),
        answer=record["answer"],
        extra_info={"index": index, "split": split, "question": record["question"]},
    )
