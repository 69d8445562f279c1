"""The columns of a prepared row and how rows are written: what every preparation recipe produces and scoring reads."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hone.data.files import Row


def to_row(question: str, *, data_source: str, ground_truth: str, answer: str, extra_info: dict[str, Any]) -> dict:
    """One prompt with its rule-checked ground truth, and `answer` as the demonstration for supervised fine-tuning."""
    return {
        "prompt": [{"role": "user", "content": question}],
        "data_source": data_source,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": extra_info,
        "answer": answer,
    }


def ground_truth(row: Row, column: str = "reward_model") -> Any:
    """What an answer is compared with; None where the row holds no truth."""
    return row.mapping(column).get("ground_truth")


def write_parquet(rows: list[dict], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
