"""How a rank's share of a mini-batch is cut so that it fits memory. Nothing computed may depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hone.batch import Batch
from hone.errors import UserError


@dataclass(frozen=True)
class Prompts:
    """Sequences that begin with the same prompt can be computed with one copy of it.

    lengths:  [N] tokens of each sequence's prompt
    families: [N] equal for sequences whose prompts have the same tokens
    """

    lengths: Sequence[int]
    families: Sequence[int]

    @classmethod
    def of(cls, batch: Batch) -> Prompts:
        """Columns input_ids and prompt_length. Compares token ids: agents of a group may have shown it differently."""
        ids, lengths = batch["input_ids"].cpu().numpy(), batch["prompt_length"].tolist()
        seen: dict[bytes, int] = {}
        starts = batch.offsets.tolist()
        keys = (ids[start : start + n].tobytes() for start, n in zip(starts, lengths, strict=False))
        return cls(lengths, [seen.setdefault(key, len(seen)) for key in keys])

    @classmethod
    def none(cls, count: int) -> Prompts:
        return cls([0] * count, range(count))


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

    def plan(self, lengths: Sequence[int], prompts: Prompts | None = None) -> list[list[int]]:
        """Row indices of each micro-batch; every row is in exactly one. With `prompts` those that share one are
        neighbours, and a prompt counts once in a micro-batch."""
        if self.max_tokens is not None:
            return self._by_tokens(lengths, prompts or Prompts.none(len(lengths)), self.max_tokens)
        rows = list(range(len(lengths)))
        if prompts is not None:
            rows.sort(key=lambda row: prompts.families[row])
        return [rows[i : i + self.size] for i in range(0, len(rows), self.size)]

    def _by_tokens(self, lengths: Sequence[int], prompts: Prompts, budget: int) -> list[list[int]]:
        longest = max(lengths, default=0)
        if longest > budget:
            raise UserError(
                f"{self.key}={budget} cannot hold a trajectory of {longest} tokens; set it to {longest} or more"
            )
        groups: list[list[int]] = []
        room = 0
        for row in _neighbours(lengths, prompts.families):
            shares = bool(groups) and prompts.families[groups[-1][-1]] == prompts.families[row]
            cost = lengths[row] - (prompts.lengths[row] if shares else 0)
            if not groups or cost > room:
                groups.append([])
                room, cost = budget, lengths[row]
            groups[-1].append(row)
            room -= cost
        return groups


def _neighbours(lengths: Sequence[int], families: Sequence[int]) -> list[int]:
    """Rows family by family, the family with the longest row first, and longest first within it."""
    longest: dict[int, int] = {}
    for family, length in zip(families, lengths, strict=True):
        longest[family] = max(length, longest.get(family, 0))
    return sorted(range(len(lengths)), key=lambda row: (-longest[families[row]], families[row], -lengths[row]))
