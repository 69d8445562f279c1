"""What can be wrong with a configuration, and the one error that reports all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hone.errors import UserError

from .schema.base import Node

MOST_SHOWN = 200


def in_brief(text: str) -> str:
    """The beginning of a text, where it is long enough to hide the message around it."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


@dataclass(frozen=True)
class Problem:
    """One thing to change. `involves` are other keys that the judgement rests on."""

    key: str
    wrong: str
    expected: str
    fix: str
    involves: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{in_brief(self.key)}: {self.wrong}"]
        parts += [f"expected {self.expected}"] if self.expected else []
        parts += [self.fix] if self.fix else []
        return "; ".join(parts)


class ConfigError(UserError):
    """All problems of one configuration; `others` are messages of checks that go beyond it.

    config: what could be made of it, with defaults in place of the `faulty` keys; None if it could not be read at all.
    """

    def __init__(
        self, command: str, problems: Sequence[Problem], *, others: Sequence[str] = (), config: Node | None = None
    ) -> None:
        self.command = command
        self.problems = list(problems)
        self.config = config
        self.faulty = frozenset(problem.key for problem in problems)
        found = [*map(str, problems), *others]
        count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        lines = [f"{count} in the configuration of `hone {command}`:", *(f"  - {text}" for text in found)]
        super().__init__("\n".join(lines))
