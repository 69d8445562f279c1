"""Finished rows whose keys and values are still in the cache, for requests whose prompts begin with their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from hone.rollout.hf.request import Request

BASE = 0x9E3779B97F4A7C15  # odd, so that its powers are too, and a difference of one token always shows


def fingerprints(token_ids: Sequence[int]) -> np.ndarray:
    """A number modulo 2^64 for each beginning of the tokens, [tokens]: sum over i of (token_i + 1) * BASE^i."""
    powers = np.cumprod(np.full(len(token_ids), BASE, dtype=np.uint64), dtype=np.uint64)
    return np.cumsum((np.asarray(token_ids, dtype=np.uint64) + np.uint64(1)) * powers, dtype=np.uint64)


class Parked:
    """The oldest first. Rows are found by the tokens whose keys they hold; of equal ones only the last is kept."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], Request] = {}  # by the number of tokens and their fingerprint
        self._keys: dict[Request, tuple[int, int]] = {}
        self._lengths: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._rows.values())

    def add(self, row: Request) -> Request | None:
        """Returns the row with the same tokens that it replaces."""
        key = row.cached, int(fingerprints(row.cached_ids)[-1])
        former = self._rows.get(key)
        if former is not None:
            self.remove(former)
        self._rows[key], self._keys[row] = row, key
        self._lengths[row.cached] += 1
        return former

    def remove(self, row: Request) -> None:
        key = self._keys.pop(row)
        del self._rows[key]
        self._lengths[key[0]] -= 1
        if not self._lengths[key[0]]:
            del self._lengths[key[0]]

    def oldest(self) -> Request:
        return next(iter(self._rows.values()))

    def longest_beginning(self, prompt_ids: tuple[int, ...]) -> Request | None:
        """The row with the most tokens that are the beginning of the prompt, and not all of it: its last token has to
        be computed, since the next one is drawn from what comes of it."""
        if not self._rows:
            return None
        found = fingerprints(prompt_ids).tolist()
        for length in sorted(self._lengths, reverse=True):
            row = self._rows.get((length, found[length - 1])) if length < len(prompt_ids) else None
            if row is not None and row.cached_ids == prompt_ids[:length]:
                return row
        return None
