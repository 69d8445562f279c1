"""How a rank's share of a mini-batch is cut so that it fits memory. Nothing computed may depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hone.errors import UserError


@dataclass(frozen=True)
class MicroBatching:
    """Either a fixed number of trajectories, or as many as fit a budget of tokens.

    size:       trajectories each, when `max_tokens` is None
    max_tokens: never exceeded; rows are laid by length, so that a micro-batch holds similar ones
    key:        the configuration key of the budget, for messages
    """

    size: int = 8
    max_tokens: int | None = None
    key: str = "ppo_max_token_len_per_gpu"

    def plan(self, lengths: Sequence[int]) -> list[list[int]]:
        """Row indices of each micro-batch; every row is in exactly one."""
        if self.max_tokens is None:
            return [list(range(i, min(i + self.size, len(lengths)))) for i in range(0, len(lengths), self.size)]
        return self._by_tokens(lengths, self.max_tokens)

    def _by_tokens(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        longest = max(lengths, default=0)
        if longest > budget:
            raise UserError(
                f"{self.key}={budget} cannot hold a trajectory of {longest} tokens; set it to {longest} or more"
            )
        groups: list[list[int]] = []
        room = 0
        for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            if not groups or lengths[row] > room:
                groups.append([])
                room = budget
            groups[-1].append(row)
            room -= lengths[row]
        return groups
