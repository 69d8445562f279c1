"""What can be wrong with a configuration, and the one error that reports all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hone.errors import UserError


@dataclass(frozen=True)
class Problem:
    """One thing to change. `involves` are other keys that the judgement rests on."""

    key: str
    wrong: str
    expected: str
    fix: str
    involves: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.key}: {self.wrong}"]
        parts += [f"expected {self.expected}"] if self.expected else []
        parts += [self.fix] if self.fix else []
        return "; ".join(parts)


class ConfigError(UserError):
    """All problems of one configuration."""

    def __init__(self, command: str, problems: Sequence[Problem]) -> None:
        self.command = command
        self.problems = list(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = [f"{count} in the configuration of `hone {command}`:", *(f"  - {p}" for p in self.problems)]
        super().__init__("\n".join(lines))
