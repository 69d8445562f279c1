"""Finds what a mistyped name was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def nearest_keys(key: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """The known dotted keys that look most like `key`, as a whole or in their last part."""
    known = list(known)
    last = key.rsplit(".", 1)[-1]
    whole = get_close_matches(key, known, n=limit, cutoff=0.75)
    close_parts = set(get_close_matches(last, {k.rsplit(".", 1)[-1] for k in known}, n=limit, cutoff=0.75))
    by_part = [k for k in known if k.rsplit(".", 1)[-1] in close_parts]
    likeness = {candidate: _likeness(key, candidate) for candidate in whole + by_part}
    best = sorted(likeness, key=lambda k: -likeness[k])[:limit]
    return [candidate for candidate in best if likeness[candidate] >= 0.9 * likeness[best[0]]]


def nearest_choice(value: object, choices: Iterable[object], *, cutoff: float = 0.5) -> str | None:
    """The choice that looks most like `value`, or None when none does."""
    matches = get_close_matches(str(value).lower(), [str(c) for c in choices], n=1, cutoff=cutoff)
    return matches[0] if matches else None


def _likeness(a: str, b: str) -> float:
    whole = SequenceMatcher(None, a, b).ratio()
    last = SequenceMatcher(None, a.rsplit(".", 1)[-1], b.rsplit(".", 1)[-1]).ratio()
    return whole + 2 * last  # a wrong section with the right last part is the usual slip
