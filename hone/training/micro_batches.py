"""How a rank's share of a mini-batch is cut so that it fits memory. Nothing computed may depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hone.batch import Batch
from hone.errors import UserError


@dataclass(frozen=True)
class MicroBatch:
    """batch: the rows of one pass; trained: [n] its tokens under the mask; places: [n] where they stand in the whole.

    An idle one has no places: a token that a rank computes only because the others still work.
    """

    batch: Batch
    trained: Tensor
    places: Tensor

    @property
    def idle(self) -> bool:
        return len(self.places) == 0

    @classmethod
    def of(cls, whole: Batch, rows: list[int], mask: str) -> MicroBatch:
        """Of these rows; without any, an idle one."""
        if not rows:
            return cls._nothing(whole)
        batch = whole.select(rows)
        trained = batch[mask].nonzero().squeeze(1)
        if len(trained) and torch.isin(trained, batch.offsets[:-1][batch.lengths > 0]).any():
            raise ValueError(
                f"the first token of a sequence is marked in {mask!r}, but nothing stands before it to predict it"
            )
        source = torch.cat([torch.arange(int(whole.offsets[r]), int(whole.offsets[r + 1])) for r in rows])
        return cls(batch, trained, source[trained])

    @classmethod
    def _nothing(cls, whole: Batch) -> MicroBatch:
        """Two tokens with every column 0, the loss weight among them."""
        tokens = {k: v.new_zeros(2, *v.shape[1:]) for k, v in whole.tokens.items()}
        batch = Batch(torch.tensor([0, 2]), tokens, {"prompt_length": torch.ones(1, dtype=torch.int64)})
        return cls(batch, torch.tensor([1]), torch.empty(0, dtype=torch.int64))


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

    def of_rows(self, rows: Sequence[int]) -> Prompts:
        return Prompts([self.lengths[row] for row in rows], [self.families[row] for row in rows])

    @property
    def repeated(self) -> int:
        """Tokens of prompts beyond the first copy of each."""
        return sum(self.lengths) - sum(dict(zip(self.families, self.lengths, strict=True)).values())


@dataclass(frozen=True)
class MicroBatching:
    """Either a fixed number of trajectories, or as many as fit a budget of tokens.

    size:       trajectories each, when `max_tokens` is None
    max_tokens: of a rank, never exceeded; rows are laid by length, so that a micro-batch holds similar ones
    padded:     rows are computed as long as their micro-batch's longest, and count so
    key:        the configuration key of the budget, for messages
    sequence_ranks: ranks that share the tokens of a micro-batch, which may then be as many times longer
    """

    size: int = 8
    max_tokens: int | None = None
    padded: bool = False
    key: str = "ppo_max_token_len_per_gpu"
    sequence_ranks: int = 1

    def plan(self, lengths: Sequence[int], prompts: Prompts | None = None) -> list[list[int]]:
        """Row indices of each micro-batch; every row is in exactly one. With `prompts` those that share one are
        neighbours, and a prompt counts once in a micro-batch."""
        if self.max_tokens is not None:
            budget = self.max_tokens * self.sequence_ranks
            return self._by_tokens(lengths, prompts or Prompts.none(len(lengths)), budget)
        rows = list(range(len(lengths)))
        if prompts is not None:
            rows.sort(key=lambda row: prompts.families[row])
        return [rows[i : i + self.size] for i in range(0, len(rows), self.size)]

    def _by_tokens(self, lengths: Sequence[int], prompts: Prompts, budget: int) -> list[list[int]]:
        longest = max(lengths, default=0)
        if longest > budget:
            raise UserError(
                f"{self.key}={self.max_tokens} cannot hold a trajectory of {longest} tokens"
                + (f", shared by {self.sequence_ranks} ranks" if self.sequence_ranks > 1 else "")
                + f"; set it to {-(-longest // self.sequence_ranks)} or more"
            )
        groups: list[list[int]] = []
        room = 0
        for row in _neighbours(lengths, prompts.families):
            shares = bool(groups) and prompts.families[groups[-1][-1]] == prompts.families[row]
            cost = lengths[row] - (prompts.lengths[row] if shares else 0)
            if self.padded and groups:
                cost = lengths[groups[-1][0]]  # the longest comes first
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
