"""Drawing one token for every row at once, from random numbers that depend on a row's seed and position alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hone.models.scripted import without_python
from hone.rollout.interface import Sampling

GOLDEN = 0x9E3779B97F4A7C15


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per (seed, position), by splitmix64 (Steele, Lea and Flood 2014). Both [rows] uint64."""
    with np.errstate(over="ignore"):
        z = _mix(seeds) + (positions + np.uint64(1)) * np.uint64(GOLDEN)
        return (_mix(z) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


def _mix(z: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class RowSampling:
    """The sampling parameters of the rows of a batch, one entry each; and whether any row needs what costs time."""

    temperature: Tensor  # [rows] fp32, 0 is greedy
    top_k: Tensor  # [rows] int64, 0 or less: off
    top_p: Tensor  # [rows] fp32, 1: off
    min_p: Tensor  # [rows] fp32, 0: off
    seeds: np.ndarray  # [rows] uint64
    penalises: bool  # repetition
    tempers: bool  # a temperature other than 1, greedy ones aside
    any_greedy: bool
    any_truncated: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling], device: torch.device) -> RowSampling:
        return cls(
            torch.tensor([r.temperature for r in rows], dtype=torch.float32, device=device),
            torch.tensor([r.top_k for r in rows], device=device),
            torch.tensor([r.top_p for r in rows], dtype=torch.float32, device=device),
            torch.tensor([r.min_p for r in rows], dtype=torch.float32, device=device),
            np.array([r.seed & 0xFFFFFFFFFFFFFFFF for r in rows], dtype=np.uint64),
            penalises=any(r.repetition_penalty != 1.0 for r in rows),
            tempers=any(r.temperature not in (0.0, 1.0) for r in rows),
            any_greedy=any(r.temperature == 0 for r in rows),
            any_truncated=any(r.top_k > 0 or r.top_p < 1 or r.min_p > 0 for r in rows),
        )

    def of_rows(self, part: slice) -> RowSampling:
        temperature, top_k, top_p, min_p = (x[part] for x in (self.temperature, self.top_k, self.top_p, self.min_p))
        return replace(self, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seeds=self.seeds[part])

    @property
    def greedy(self) -> Tensor:
        return self.temperature == 0

    @property
    def truncated(self) -> Tensor:
        return ((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)) & ~self.greedy


def sample(logits: Tensor, rows: RowSampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """logits [rows, V] fp32 and uniform [rows] -> (token [rows], its log-probability [rows]).

    Inverse-transform sampling: a cumulative sum and a search, on a CPU ten times cheaper than torch.multinomial.
    """
    if rows.tempers:
        logits = logits / torch.where(rows.greedy, 1.0, rows.temperature)[:, None]
    if rows.any_truncated:
        logits = torch.where(rows.truncated[:, None], truncate(logits, rows), logits)
    greedy = rows.greedy if rows.any_greedy else None
    return without_python(inverse_transform, logits.device)(logits, uniform, greedy)


def inverse_transform(logits: Tensor, uniform: Tensor, greedy: Tensor | None) -> tuple[Tensor, Tensor]:
    """logits [rows, V] as they are drawn from, greedy [rows] which rows take their best token. Kept to what TorchScript
    understands."""
    probabilities = logits.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    # Below the total, though the product may round up to it: else the last token would be drawn, which may be cut off.
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=logits.shape[1] - 1)
    if greedy is not None:
        token = torch.where(greedy, logits.argmax(-1), token)
    return token, probabilities.gather(-1, token[:, None]).squeeze(-1).log()


def truncate(logits: Tensor, rows: RowSampling) -> Tensor:
    """-inf outside the kept tokens: the top_k best, of these the fewest that hold top_p, of these those above min_p."""
    ordered, index = logits.sort(-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    keep = (rows.top_k <= 0)[:, None] | (rank < rows.top_k[:, None])
    probabilities = ordered.masked_fill(~keep, float("-inf")).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    keep = keep & ((before < rows.top_p[:, None]) | (rank == 0))
    keep = keep & (probabilities >= rows.min_p[:, None] * probabilities[:, :1])
    return logits.masked_fill(~torch.zeros_like(keep).scatter(-1, index, keep), float("-inf"))


def penalise_repetition(logits: Tensor, seen: list[list[int]], penalties: list[float]) -> Tensor:
    """Divides positive logits of tokens already seen by the penalty, multiplies negative ones (Keskar et al. 2019)."""
    logits = logits.clone()
    for row, (tokens, penalty) in enumerate(zip(seen, penalties, strict=True)):
        if penalty != 1.0:
            index = torch.tensor(sorted(set(tokens)), device=logits.device)
            values = logits[row, index]
            logits[row, index] = torch.where(values > 0, values / penalty, values * penalty)
    return logits
