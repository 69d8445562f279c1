"""Which scorer a data source gets. Add one with `@register("name", ...)` on a function of the same signature."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from hone.errors import UserError
from hone.rewards import gsm8k, math

Scorer = Callable[[str, str, Any, "dict[str, Any] | None"], "float | dict[str, Any] | None"]

SCORERS: dict[str, Scorer] = {}  # data source, or a pattern with *, to scorer


def register(*data_sources: str) -> Callable[[Scorer], Scorer]:
    """Use the decorated function for these data sources; `*` stands for any text."""

    def add(scorer: Scorer) -> Scorer:
        SCORERS.update(dict.fromkeys(data_sources, scorer))
        return scorer

    return add


register("openai/gsm8k", "gsm8k", "arithmetic")(gsm8k.compute_score)
register("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math", "aime*")(
    math.compute_score
)


def find_scorer(data_source: str) -> Scorer:
    for pattern, scorer in SCORERS.items():
        if fnmatchcase(data_source, pattern):
            return scorer
    raise UserError(
        f"No scorer for data source '{data_source}'. Known: {', '.join(SCORERS)}. Set custom_reward_function.path to a "
        "file with your own compute_score, or data.reward_fn_key to the column that names the data source."
    )


def check_scorable(data_source: str, ground_truth: Any) -> None:
    """Raises UserError for what `default_compute_score` could score no answer to."""
    scorer = find_scorer(data_source)
    if ground_truth is None:
        raise UserError(
            f"there is no ground truth, and answers of the data source '{data_source}' are compared with it. Add "
            "{'ground_truth': ...} to the row's column reward_model, or remove the row."
        )
    if scorer is gsm8k.compute_score:
        try:
            gsm8k.expected_answer(data_source, ground_truth)
        except ValueError as problem:
            raise UserError(f"{problem}. Correct the row, or remove it.") from problem


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float | dict[str, Any] | None:
    """Score one answer by the rules of its data source."""
    return find_scorer(data_source)(data_source, solution_str, ground_truth, extra_info)
