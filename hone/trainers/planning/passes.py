"""The passes of a training step over one rank's share: how many micro-batches, and the fullest of them. Dealing and
micro-batches are the run's own, over sequences that are all as long as they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from hone.batch import Batch
from hone.cluster import Dealing
from hone.training.micro_batches import MicroBatching, Prompts

LARGEST_MASK = 2**28  # bytes; a larger one is not worth making for a plan


@dataclass(frozen=True)
class Sequences:
    """The longest sequences of a run: tokens of a prompt and of a response, and responses that share a prompt."""

    prompt: int
    response: int
    n: int = 1

    @property
    def total(self) -> int:
        return self.prompt + self.response


@dataclass(frozen=True)
class Micro:
    """The sequences of one pass: tokens of their prompts and their own, and equal families for equal prompts."""

    prompts: list[int]
    lengths: list[int]
    families: list[int]

    @property
    def trained(self) -> int:
        return sum(self.lengths) - sum(self.prompts)

    def computed(self, *, shared_prompts: bool) -> int:
        """Tokens that run through the model: of equal prompts one."""
        distinct = dict(zip(self.families, self.prompts, strict=True)).values() if shared_prompts else self.prompts
        return sum(distinct) + self.trained

    def shared_by(self, ranks: int) -> Micro:
        """As many tokens as one of the ranks computes of it, in the form of one sequence."""
        if ranks == 1:
            return self
        length = max(-(-sum(self.lengths) // ranks), 2)
        response = min(self.trained, length - 1)
        return Micro([length - response], [length], [0])

    def batch(self, vocabulary: int) -> tuple[Batch, Tensor]:
        """The batch, whose families differ in their token ids, and the places of its trained tokens."""
        offsets = torch.tensor([0, *self.lengths]).cumsum(0)
        ids = [torch.full((n,), family % vocabulary) for n, family in zip(self.lengths, self.families, strict=True)]
        for tokens, family in zip(ids, self.families, strict=True):
            tokens[0] = family // vocabulary
        rows = {"prompt_length": torch.tensor(self.prompts)}
        spans = zip(offsets[:-1].tolist(), self.prompts, offsets[1:].tolist(), strict=True)
        trained = torch.cat([torch.arange(start + prompt, stop) for start, prompt, stop in spans])
        return Batch(offsets, {"input_ids": torch.cat(ids)}, rows), trained


@dataclass(frozen=True)
class Pass:
    """What a rank does with its share of some trajectories.

    sequences:     of the rank that has most
    micro_batches: where every sequence is as long as it may be; `exact` if other lengths give the same number
    fullest:       the micro-batch of most tokens, and how many of them are computed
    padded:        its sequences are rows of a rectangle
    """

    sequences: int
    micro_batches: int
    exact: bool
    fullest: Micro
    tokens: int
    padded: bool = False

    def times(self, factor: float) -> Pass:
        """Over so many times the sequences, whose fullest micro-batch is no other."""
        return replace(
            self,
            sequences=ceil(self.sequences * factor),
            micro_batches=ceil(self.micro_batches * factor),
            exact=False,
        )

    @property
    def dearest(self) -> Micro:
        """The micro-batch that takes most memory."""
        return _ragged(self.fullest) if self.padded else self.fullest


def pass_over(
    groups: Sequence[int],
    longest: Sequences,
    batching: MicroBatching,
    *,
    ranks: int,
    shared_prompts: bool,
    dealing: Dealing,
) -> Pass:
    """groups: [trajectories] the prompt that each answers; ranks: all, also those that share sequences"""
    takers = ranks // batching.sequence_ranks
    rows = torch.arange(len(groups) + 1)
    whole = Batch(rows, {"input_ids": rows[1:]}, {"group": torch.tensor(groups)})
    mine = max(dealing.rows(whole, takers), key=len)
    families = [groups[row] for row in mine]
    lengths, prompts = [longest.total] * len(mine), [longest.prompt] * len(mine)
    plan = batching.plan(lengths, Prompts(prompts, families) if shared_prompts else None)
    fullest = max(plan, key=len)
    micro = Micro([longest.prompt] * len(fullest), [longest.total] * len(fullest), [families[i] for i in fullest])
    dynamic = batching.max_tokens is not None
    if dynamic and len(plan) > 1:
        micro = _filled(micro, longest, batching, shared_prompts=shared_prompts)
    even = takers == 1 or not dealing.balance
    exact = even and (not dynamic or len(groups) == 1)
    tokens = micro.computed(shared_prompts=shared_prompts)
    return Pass(len(mine), len(plan), exact, micro, tokens, batching.padded)


def _ragged(micro: Micro) -> Micro:
    """With a row that is a token shorter: where rows differ, attention needs a mask, which is [rows, 1, L, L], and keys
    and values for each of its heads."""
    rows, longest = len(micro.lengths), max(micro.lengths)
    if rows == 1 or micro.prompts[-1] + 1 == longest or rows * longest**2 > LARGEST_MASK:
        return micro
    return Micro(micro.prompts, [*micro.lengths[:-1], longest - 1], micro.families)


def _filled(micro: Micro, longest: Sequences, batching: MicroBatching, *, shared_prompts: bool) -> Micro:
    """With a shorter sequence in the room that is left of the budget, where such a one fits."""
    assert batching.max_tokens is not None
    used = micro.computed(shared_prompts=shared_prompts)
    room = batching.max_tokens * batching.sequence_ranks - used
    if batching.padded or room < 2:
        return micro
    prompt = min(max(room * longest.prompt // longest.total, 1), room - 1)
    other = max(micro.families) + 1
    return Micro([*micro.prompts, prompt], [*micro.lengths, room], [*micro.families, other])
