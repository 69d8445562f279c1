"""Seeded word problems of one to three steps with totals from 0 to 20: a data set that a tiny model can learn from.

The vocabulary is small on purpose, so that a tokenizer of 512 entries keeps its words whole and prompts stay short.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hone.data.schema import to_row, write_parquet
from hone.errors import UserError

NAMES = ("Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Amy")
THINGS = ("cups", "pens", "eggs", "nuts", "toys", "keys", "hats", "bags")
GAINS = ("{name} buys {amount}.", "{name} finds {amount}.")
LOSSES = ("{name} loses {amount}.", "{name} gives {other} {amount}.")
OPENINGS = ("{name} has {amount}.", "At first {name} has {amount}.")
QUESTION = "How many {thing} does {name} have now?"
LARGEST_TOTAL = 20
STEPS, STEP_SHARES = (1, 2, 3), (0.1, 0.2, 0.7)  # mostly too long to solve in one go
LARGEST_START = 18
LARGEST_CHANGE = 8
WORKED_STREAM = 0x3A4E  # apart from the random numbers that make the problems
WORKED_SHARE = 0.4  # demonstrations that show the running total; the others answer at once


@dataclass(frozen=True)
class Problem:
    question: str
    changes: tuple[int, ...]  # the amount at the start, then what each step adds (positive) or takes away (negative)

    @property
    def total(self) -> int:
        return sum(self.changes)

    def worked_answer(self) -> str:
        """`5+8=13 13-2=11 #### 11`: every step with its running total."""
        running, lines = self.changes[0], []
        for change in self.changes[1:]:
            lines.append(f"{running}{change:+d}={running + change}")
            running += change
        return " ".join([*lines, self.bare_answer()])

    def bare_answer(self) -> str:
        return f"#### {self.total}"


def sample_problem(rng: np.random.Generator) -> Problem:
    name, other = (str(word) for word in rng.choice(NAMES, size=2, replace=False))
    thing = str(rng.choice(THINGS))
    total = int(rng.integers(1, LARGEST_START + 1))
    words = {"name": name, "other": other, "thing": thing}
    sentences, changes = [_sentence(rng, OPENINGS, words, total)], [total]
    for _ in range(int(rng.choice(STEPS, p=STEP_SHARES))):
        change = _sample_change(rng, total)
        sentences.append(_sentence(rng, GAINS if change > 0 else LOSSES, words, change))
        changes.append(change)
        total += change
    sentences.append(QUESTION.format(**words))
    return Problem(" ".join(sentences), tuple(changes))


def _sample_change(rng: np.random.Generator, total: int) -> int:
    """A gain or a loss, equally likely where both are possible, that keeps the total between 0 and LARGEST_TOTAL."""
    room_up, room_down = min(LARGEST_CHANGE, LARGEST_TOTAL - total), min(LARGEST_CHANGE, total)
    gain = room_down == 0 or (room_up > 0 and rng.random() < 0.5)
    return int(rng.integers(1, room_up + 1)) if gain else -int(rng.integers(1, room_down + 1))


def _sentence(rng: np.random.Generator, forms: tuple[str, ...], words: dict[str, str], change: int) -> str:
    form = forms[int(rng.integers(len(forms)))]
    return form.format(**words, amount=f"{abs(change)} {words['thing']}")


def sample_distinct(count: int, *, seed: int) -> list[Problem]:
    """`count` problems, no question twice."""
    rng = np.random.default_rng(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = sample_problem(rng)
        problems.setdefault(problem.question, problem)
    return list(problems.values())


def _split_rows(problems: list[Problem], split: str, *, seed: int) -> list[dict]:
    worked_count = round(WORKED_SHARE * len(problems))
    worked = set(np.random.default_rng([WORKED_STREAM, seed]).permutation(len(problems))[:worked_count].tolist())
    return [
        to_row(
            problem.question,
            data_source="arithmetic",
            ground_truth=str(problem.total),
            answer=problem.worked_answer() if index in worked else problem.bare_answer(),
            extra_info={
                "index": index,
                "split": split,
                "question": problem.question,
                "steps": len(problem.changes) - 1,
            },
        )
        for index, problem in enumerate(problems)
    ]


def write_arithmetic(
    output_dir: str | Path, *, train_size: int = 20000, test_size: int = 200, seed: int = 0
) -> tuple[Path, Path]:
    """Write train.parquet and test.parquet into `output_dir`; no question stands in both."""
    for key, size in (("--train-size", train_size), ("--test-size", test_size)):
        if not 1 <= size <= 1_000_000:
            raise UserError(f"{key}={size} is out of range: expected 1 to 1,000,000 rows.")
    problems = sample_distinct(train_size + test_size, seed=seed)
    splits = {"train": problems[test_size:], "test": problems[:test_size]}
    directory = Path(output_dir).expanduser()
    for split_number, (split, chosen) in enumerate(splits.items()):
        write_parquet(_split_rows(chosen, split, seed=seed + split_number), directory / f"{split}.parquet")
    return directory / "train.parquet", directory / "test.parquet"
