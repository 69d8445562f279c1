"""What can be said of another name of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

ANY = None  # for Settled.works: no value of the name has anything to act on


@dataclass(frozen=True)
class Renamed:
    """`old` is another name of `new`. `values` are those that are written differently here. The two are apart while
    the key `apart[0]` is `apart[1]`."""

    old: str
    new: str
    values: Mapping[Any, Any] = field(default_factory=dict)
    apart: tuple[str, str] | None = None


@dataclass(frozen=True)
class Divided:
    """`old` counts over all ranks what `new` counts per rank. `shared` is the key that says how many ranks take part
    together, where they share sequences."""

    old: str
    new: str
    shared: str | None = None


@dataclass(frozen=True)
class Settled:
    """Nothing is to be chosen here: the values in `works` say what happens anyway (`${a.key}` is that key's value), any
    other is refused. A name that ends in `.*` stands for all below it, one that ends in `=` for a config group. Nothing
    is said while the key `apart[0]` is `apart[1]`, which is refused by itself."""

    old: str
    works: tuple[Any, ...] | None
    reason: str
    instead: str = ""
    apart: tuple[str, str] | None = None


Row = Renamed | Divided | Settled


def same_in(old: str, new: str, *names: str) -> Iterator[Row]:
    """Keys that only moved to another section."""
    yield from (Renamed(f"{old}.{name}", f"{new}.{name}") for name in names)
