"""Scores answers in GSM8K's form: the last `#### number` of the text against the ground truth, compared as numbers."""

import re
from decimal import Decimal
from typing import Any

# A number that runs on ("18/2", "1.2.3", "5+8=13") is not an answer.
ANSWER = re.compile(
    r"####\s*(?:(?P<sign>-)\s*)?(?:\$\s*)?(?P<inner_sign>-?)(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)"
    r"(?!\d|[.,]\d|[ \t]*[-+*/^=][ \t]*\d)"
)


def last_answer(text: str) -> Decimal | None:
    """The number after the last `####` that has one; `$18`, `1,234`, `18.00` and `-3` count."""
    matches = list(ANSWER.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    value = Decimal(match["digits"].replace(",", ""))
    return -value if match["sign"] or match["inner_sign"] else value


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """1.0 for the right number, else 0.0."""
    return float(last_answer(solution_str) == expected_answer(data_source, ground_truth))


def expected_answer(data_source: str, ground_truth: Any) -> Decimal:
    """The number of a ground truth, with or without `####` before it; raises ValueError where there is none."""
    truth = str(ground_truth)
    expected = last_answer(truth if "####" in truth else f"#### {truth}")
    if expected is None:
        raise ValueError(f"ground truth {ground_truth!r} of data source '{data_source}' is not a number")
    return expected
