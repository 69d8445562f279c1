"""Takes other names out of a raw tree, so that the schema never sees them, and says once what each was read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..problems import Problem
from ..support import hydra_text
from ..tree import Tree, drop, get, leaves, put
from .rows import ANY, Divided, Renamed, Row, Settled

ABSENT = object()
LONGEST_CHAIN = 8  # of keys that repeat each other


@dataclass
class Translation:
    """What was found. `spelled` tells for a key by which other name the user set it."""

    notices: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    spelled: dict[str, str] = field(default_factory=dict)


class Translator:
    """Changes a raw tree in place. `user_keys` were set in a file or on the command line, `overridden` there."""

    def __init__(self, tree: Tree, user_keys: set[str], overridden: set[str]) -> None:
        self.tree, self.user_keys, self.overridden = tree, user_keys, overridden
        self.found = Translation()

    def __call__(self, rows: Sequence[Row], defaults: Tree) -> Translation:
        for row in rows:
            if not row_is_apart(row, self.tree):
                for name in matching(row.old, self.tree):
                    self._translate(row, name, defaults)
            elif isinstance(row, Settled):  # refused by another key already
                for name in matching(row.old, self.tree):
                    remove(self.tree, name, defaults)
        self._drop_empty_sections(rows, defaults)
        return self.found

    def _drop_empty_sections(self, rows: Sequence[Row], defaults: Tree) -> None:
        """What an override `~section.name` left of a section of other names."""
        for section in {row.old.rpartition(".")[0] for row in rows}:
            if section and get(self.tree, section, None) == {} and get(defaults, section, ABSENT) is ABSENT:
                remove(self.tree, section, defaults)

    def _translate(self, row: Row, name: str, defaults: Tree) -> None:
        value, default = get(self.tree, name), get(defaults, name, ABSENT)
        given = value is not None and (default is ABSENT or name in self.user_keys)
        if default is ABSENT:
            remove(self.tree, name, defaults)
        else:  # a key of the schema: it repeats the one that counts, or has nothing to say
            put(self.tree, name, None if default is None or isinstance(row, Settled) else "${" + row.new + "}")
        if isinstance(row, Settled):
            self._settle(row, name, value)
        elif given and isinstance(row, Renamed):
            self._set(name, row.new, translated(value, row.values))
        elif given and isinstance(row, Divided):
            self._divide(row, name, value)
        self.user_keys.discard(name)

    def _settle(self, row: Settled, name: str, value: Any) -> None:
        name = name.removesuffix("=")
        works = [literal(self.tree, work) for work in row.works or ()]
        if row.works is ANY:
            self.found.notices.append(f"{name}={hydra_text(value)} has nothing to act on: {row.reason}")
        elif value is None or value in works:
            self.found.notices.append(f"{name}={hydra_text(value)} is read and changes nothing: it is so anyway")
        else:
            expected = " or ".join(map(hydra_text, works)) or "null"
            wrong = f"{hydra_text(value)} is not available in this build ({row.reason})"
            self.found.problems.append(Problem(name, wrong, expected, row.instead or f"remove {name}"))

    def _set(self, old: str, new: str, value: Any, said: str = "is another name") -> None:
        if new not in self.user_keys or self._counts(old, new):
            put(self.tree, new, value)
            self.found.notices.append(f"{old} {said}; {new}={hydra_text(value)} is used")
        elif self._counts(new, old):
            self.found.notices.append(f"{old} of the file gives way to {new} of the command line")
            return
        elif not same(followed(self.tree, new), literal(self.tree, value)):
            other = self.found.spelled.get(new, new)
            wrong = f"is {value!r}, but {other}, another name of it, is {get(self.tree, new)!r}"
            self.found.problems.append(Problem(old, wrong, "one of the two", f"remove {old}", (new,)))
            return
        self.found.spelled.setdefault(new, old)
        self.user_keys.add(new)
        if old in self.overridden:
            self.overridden.add(new)

    def _counts(self, name: str, other: str) -> bool:
        """What the command line says goes before what a file says by another name."""
        return name in self.overridden and other not in self.overridden

    def _divide(self, row: Divided, name: str, count: Any) -> None:
        takers = self._takers(row.shared)
        if self._counts(row.new, name):
            self.found.notices.append(f"{name} of the file gives way to {row.new} of the command line")
        elif row.new in self.user_keys and not self._counts(name, row.new):
            wrong, fix = f"is given next to {row.new}", f"remove {name}, it is deprecated"
            self.found.problems.append(Problem(name, wrong, "one of the two", fix, (row.new,)))
        elif not isinstance(count, int) or isinstance(count, bool) or count < 1:
            self.found.problems.append(Problem(name, f"{count!r} is no count", "an integer >= 1", f"set {row.new}"))
        elif takers is None:
            return  # the schema reports the numbers of ranks
        elif count % takers:
            wrong = f"{count} cannot be shared by {takers} ranks"
            self.found.problems.append(Problem(name, wrong, f"a multiple of {takers}", f"set {row.new} instead"))
        else:
            self._set(name, row.new, count // takers, f"is deprecated ({count} over {takers} ranks)")

    def _takers(self, shared: str | None) -> int | None:
        """Ranks that take rows of their own: those that share sequences count once. None: the schema reports it."""
        counts = [followed(self.tree, key) for key in ("trainer.nnodes", "trainer.n_gpus_per_node")]
        counts.append(followed(self.tree, shared) if shared else 1)
        if not all(isinstance(count, int) and count > 0 for count in counts):
            return None
        nodes, ranks_per_node, sharing = counts
        return max(nodes * ranks_per_node // sharing, 1)


def followed(tree: Tree, key: str) -> Any:
    """The value of a key, or of the one that it repeats."""
    return literal(tree, get(tree, key, None))


def literal(tree: Tree, value: Any) -> Any:
    """What a raw value that does nothing but repeat a key stands for; keys that go round in a circle stay references,
    which are reported when they are resolved."""
    for _ in range(LONGEST_CHAIN):
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            break
        value = get(tree, value[2:-1], None)
    return value


def row_is_apart(row: Row, tree: Tree) -> bool:
    apart = None if isinstance(row, Divided) else row.apart
    return apart is not None and followed(tree, apart[0]) == apart[1]


def matching(old: str, tree: Tree) -> list[str]:
    """The names in the tree that a row's `old` stands for."""
    if not old.endswith(".*"):
        value = get(tree, old, ABSENT)
        return [] if value is ABSENT or (isinstance(value, dict) and value) else [old]
    below = get(tree, old[:-2], {})
    return [f"{old[:-2]}.{name}" for name, _ in leaves(below)] if isinstance(below, dict) else []


def remove(tree: Tree, name: str, defaults: Tree) -> None:
    """Drops a name, and the sections that were only there for it."""
    drop(tree, name)
    section = name.rpartition(".")[0]
    if section and not get(tree, section) and get(defaults, section, ABSENT) is ABSENT:
        remove(tree, section, defaults)


def translated(value: Any, values: Mapping[Any, Any]) -> Any:
    return values.get(value, value) if isinstance(value, (str, int, float, bool)) else value


def same(a: Any, b: Any) -> bool:
    """Whether two raw values say the same; a reference may, once it is resolved."""
    return a == b or any(isinstance(value, str) and "${" in value for value in (a, b))
