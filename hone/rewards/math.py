"""Scores answers in MATH's form: the last \\boxed{} of the text against the ground truth, as mathematics."""

from typing import Any

from hone.rewards.equivalence import equivalent

BOXES = (r"\boxed", r"\fbox")


def last_boxed(text: str) -> str | None:
    """The content of the last complete \\boxed{...}, with balanced braces; `\\boxed 5` holds up to a space or $."""
    starts = sorted((i for box in BOXES for i in _occurrences(text, box)), reverse=True)
    for start in starts:
        rest = text[start:].lstrip("\\").removeprefix("boxed").removeprefix("fbox")
        content = _braced(rest.lstrip()) if rest.lstrip().startswith("{") else _bare(rest)
        if content is not None:
            return content
    return None


def _occurrences(text: str, part: str) -> list[int]:
    return [i for i in range(len(text)) if text.startswith(part, i)]


def _braced(text: str) -> str | None:
    depth = 0
    for position, character in enumerate(text):
        escaped = text[:position].endswith("\\")
        depth += 0 if escaped else {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:position].strip()
    return None


def _bare(text: str) -> str | None:
    words = text.split("$")[0].split() if text.startswith(" ") else []
    return words[0] if words else None


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """1.0 for an equivalent answer, else 0.0; a text without a box is wrong."""
    answer = last_boxed(solution_str)
    truth = str(ground_truth)
    return float(answer is not None and equivalent(answer, last_boxed(truth) or truth))
