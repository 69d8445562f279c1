"""Scores answers in MATH's form: the last \\boxed{} of the text against the ground truth, as mathematics."""

import re
from typing import Any

from hone.rewards.equivalence import equivalent

BOX_OR_BRACE = re.compile(
    r"\\(?:boxed|fbox)(?:\s*(?P<open>\{)|(?= \s*(?P<bare>[^\s$]+))|)"  # what follows a bare box may hold braces
    r"|(?<!\\)(?P<brace>[{}])"
)


def last_boxed(text: str) -> str | None:
    """The content of the last complete \\boxed{...}, with balanced braces; `\\boxed 5` holds up to a space or $."""
    best, content = -1, slice(0)
    braces: list[tuple[int, int]] = []  # where each open one began and its content begins; -1 if it is no box
    for match in BOX_OR_BRACE.finditer(text):
        start = match.start()
        if match["open"]:
            braces.append((start, match.end()))
        elif match["bare"]:
            best, content = start, slice(*match.span("bare"))
        elif match["brace"] == "{":
            braces.append((-1, start))
        elif match["brace"] == "}" and braces:
            box, inside = braces.pop()
            if box > best:
                best, content = box, slice(inside, start)
    return text[content].strip() if best >= 0 else None


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """1.0 for an equivalent answer, else 0.0; a text without a box is wrong."""
    answer = last_boxed(solution_str)
    truth = str(ground_truth)
    return float(answer is not None and equivalent(answer, last_boxed(truth) or truth))
