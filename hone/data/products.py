"""Seeded questions for products of two-digit numbers, which a tiny model cannot compute and a calculator can.

A part of the demonstrations calls the calculator, as text in Hermes' format; the others answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hone.data.arithmetic import NAMES, THINGS
from hone.data.schema import to_row, write_parquet

SMALLEST, LARGEST = 32, 99  # four digits in every product: so small a model copies best from where it always stands
QUESTION = "{name} has {boxes} boxes of {each} {thing}. How many {thing}?"
CALL = '<tool_call>{{"name":"calculator","arguments":{{"expression":"{expression}"}}}}</tool_call>'
TOOLS = "tools:\n  - class_name: calculator\n"
CALLING_STREAM = 0xCA11  # apart from the random numbers that make the questions
CALLING_SHARE = 0.4


@dataclass(frozen=True)
class Product:
    name: str
    thing: str
    boxes: int
    each: int

    @property
    def question(self) -> str:
        return QUESTION.format(name=self.name, boxes=self.boxes, each=self.each, thing=self.thing)

    @property
    def total(self) -> int:
        return self.boxes * self.each

    def demonstration(self, *, calls: bool) -> list[dict[str, Any]]:
        """The whole conversation."""
        answer = {"role": "assistant", "content": f"#### {self.total}"}
        if not calls:
            return [{"role": "user", "content": self.question}, answer]
        call = {"role": "assistant", "content": CALL.format(expression=f"{self.boxes}*{self.each}")}
        return [
            {"role": "user", "content": self.question},
            call,
            {"role": "tool", "content": str(self.total)},
            answer,
        ]


def sample_distinct(count: int, *, seed: int) -> list[Product]:
    """`count` products, no question twice."""
    rng = np.random.default_rng(seed)
    found: dict[Product, None] = {}
    while len(found) < count:
        boxes, each = (int(n) for n in rng.integers(SMALLEST, LARGEST + 1, size=2))
        found[Product(str(rng.choice(NAMES)), str(rng.choice(THINGS)), boxes, each)] = None
    return list(found)


def write_products(
    output_dir: str | Path, *, train_size: int = 10000, test_size: int = 200, seed: int = 0
) -> tuple[Path, Path]:
    """Write train.parquet, test.parquet and tools.yaml into `output_dir`; no question stands in both files."""
    products = sample_distinct(train_size + test_size, seed=seed)
    directory = Path(output_dir).expanduser()
    paths = directory / "train.parquet", directory / "test.parquet"
    write_parquet(_rows(products[test_size:], "train", seed), paths[0])
    write_parquet(_rows(products[:test_size], "test", seed + 1), paths[1])
    (directory / "tools.yaml").write_text(TOOLS)
    return paths


def _rows(products: list[Product], split: str, seed: int) -> list[dict[str, Any]]:
    calling = np.random.default_rng([CALLING_STREAM, seed]).random(len(products)) < CALLING_SHARE
    return [_row(product, split, i, bool(calling[i])) for i, product in enumerate(products)]


def _row(product: Product, split: str, index: int, calls: bool) -> dict[str, Any]:
    messages = product.demonstration(calls=calls)
    row = to_row(
        product.question,
        data_source="arithmetic",
        ground_truth=str(product.total),
        answer="".join(message["content"] for message in messages[1:]),
        extra_info={"index": index, "split": split, "question": product.question},
    )
    return {**row, "messages": messages}
