"""The Chinese texts of the schema: `zh/<section>.txt` holds each English text with its Chinese one indented below it.

They are found by the English text, so that a text that changes asks for its Chinese again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hone.errors import UserError

TEXTS = Path(__file__).parent / "zh"


@cache
def chinese() -> dict[str, str]:
    """{English text: Chinese text}"""
    return {english: text for file in sorted(TEXTS.glob("*.txt")) for english, text in pairs(file)}


def in_chinese(text: str) -> str:
    if text not in chinese():
        raise UserError(f"there is no Chinese text for {text!r}; add one to a file in {TEXTS}")
    return chinese()[text]


def pairs(file: Path) -> Iterator[tuple[str, str]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, (english, text) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        if english.startswith(" ") or not text.startswith("    "):
            raise ValueError(f"{file}, line {2 * number + 1}: an English line and an indented Chinese one expected")
        yield english, text.strip()
