"""What is known about one key: meaning, accepted values, default, what it follows, what this build refuses, which code
reads it, its old names and its relatives."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hone.errors import UserError

from .names import NAMES, Divided, Renamed, Row, chooses_a_group, is_other_name
from .overrides import unknown_key
from .presets import DEFAULT_PRESET, PRESETS
from .readers import readers
from .resting import RESTING
from .schema.walk import KeyDoc, document, knows
from .support import NOT_BUILT, NotBuilt, hydra_text
from .validate import reference

MOST_RELATED = 8


def answer(command: str, key: str) -> str:
    """What there is to say about a key, a section, the end of a key's name, or nothing, which lists all keys."""
    schema = PRESETS[DEFAULT_PRESET[command]].schema
    docs = document(schema)
    key = re.sub(r"^(\+\+?|~)|=.*$", "", key, flags=re.DOTALL)  # of an override that key
    if key in docs or not key:
        return _explained(command, docs, key) if key and not docs[key].section else _section(docs, key)
    ending = [docs[known] for known in docs if known.endswith(f".{key}")]
    if len(ending) == 1 and not ending[0].section:
        return _explained(command, docs, ending[0].key)
    if ending:
        return "\n".join(in_short(doc) for doc in ending)
    if knows(schema, key):
        return _free_form(docs, key)
    if is_other_name(command, key) or chooses_a_group(command, key):
        return _other_name(command, docs, key)
    raise UserError(str(unknown_key(schema, key)).replace("explain COMMAND", f"explain {command}"))


def _section(docs: dict[str, KeyDoc], key: str) -> str:
    title = [f"{key}\n  {docs[key].meaning}"] if key else []
    inside = (doc for doc in docs.values() if not doc.section and doc.key.startswith(f"{key}." if key else ""))
    return "\n".join([*title, *(in_short(doc) for doc in inside)])


def _free_form(docs: dict[str, KeyDoc], key: str) -> str:
    inside = max((known for known in docs if key.startswith(f"{known}.")), key=len)
    return f"{key}\n  An entry of {inside}, which takes any name. {docs[inside].meaning}"


def _other_name(command: str, docs: dict[str, KeyDoc], name: str) -> str:
    """Of a section of other names all that are in it."""
    return "\n".join(dict.fromkeys(_of_row(row, docs) for row in NAMES[command] if _speaks_of(row, name)))


def _speaks_of(row: Row, name: str) -> bool:
    stands_for_it = row.old.endswith(".*") and name.startswith(row.old[:-1])
    return stands_for_it or row.old in (name, f"{name}=") or row.old.startswith(f"{name}.")


def _of_row(row: Row, docs: dict[str, KeyDoc]) -> str:
    if isinstance(row, Renamed):
        return f"{row.old}\n  another name of {row.new}: {docs[row.new].meaning}"
    if isinstance(row, Divided):
        return f"{row.old}\n  over all ranks what {row.new} is for each: {docs[row.new].meaning}"
    works = " or ".join(hydra_text(value) for value in row.works or ())
    taken = f"takes only {works or 'null'}" if row.works is not None else "is read and has nothing to act on"
    return f"{row.old.removesuffix('=')}\n  {taken} ({row.reason})"


def _explained(command: str, docs: dict[str, KeyDoc], key: str) -> str:
    doc = docs[key]
    facts = {
        "accepts": [doc.expected],
        "default": [_default(doc, docs)],
        "this build": list(refusals(command, key)),
        "rests while": [f"{r.switch}={hydra_text(r.off)}" for r in RESTING[command] if r.holds(key)],
        "read by": [", ".join(readers(command, key)) or "no module of this build"],
        "another name of": new_names(command, key),
        "other names": old_names(command, key),
        "related": list(related(docs, key))[:MOST_RELATED],
    }
    lines = [f"  {label}: {', '.join(values)}" for label, values in facts.items() if values]
    return "\n".join([key, f"  {doc.meaning}", *lines])


def in_short(doc: KeyDoc) -> str:
    name = doc.key if doc.section else f"{doc.key}={hydra_text(doc.default)}"
    return f"{name}\n    {doc.meaning}"


def _default(doc: KeyDoc, docs: dict[str, KeyDoc]) -> str:
    followed = reference(doc.default)
    if followed is None:
        return hydra_text(doc.default)
    value = docs[followed].default
    return f"that of {followed}" + ("" if reference(value) else f", which is {hydra_text(value)}")


def refusals(command: str, key: str) -> Iterator[str]:
    """What this build does not take for a key, with the reason, also where a switch of its section is refused."""
    for row in NOT_BUILT[command]:
        if _covers(row.key, key):
            yield f"{_taken(row)} ({row.reason})"
        elif _switches(row, key):
            yield f"rests, since {row.key} {_taken(row)} ({row.reason})"


def _covers(refused: str, key: str) -> bool:
    return key == refused or key.startswith(f"{refused}.")


def _switches(row: NotBuilt, key: str) -> bool:
    """`reward_model.enable` decides over all of reward_model, a `path` over the `name` beside it."""
    section, _, last = row.key.rpartition(".")
    beside = last == "path" and key == f"{section}.name"
    return beside or (last == "enable" and row.works == (False,) and key.startswith(f"{section}."))


def _taken(row: NotBuilt) -> str:
    values = " or ".join(hydra_text(value) for value in row.works)
    return f"takes only {values}" + (f" while {row.when[0]}={hydra_text(row.when[1][0])}" if row.when else "")


def old_names(command: str, key: str) -> list[str]:
    """Names that a file or an override may use instead of the key."""
    return [row.old for row in NAMES[command] if isinstance(row, (Renamed, Divided)) and row.new == key]


def new_names(command: str, name: str) -> list[str]:
    return [row.new for row in NAMES[command] if isinstance(row, (Renamed, Divided)) and row.old == name]


def related(docs: dict[str, KeyDoc], key: str) -> Iterator[str]:
    """Keys that this one follows or that follow it, that one of the two texts names, then its namesakes."""
    found = [*_followed(docs, key), *_named(docs, key), *_namesakes(docs, key)]
    yield from (other for other in dict.fromkeys(found) if other != key)


def _followed(docs: dict[str, KeyDoc], key: str) -> Iterator[str]:
    for doc in docs.values():
        if key == reference(doc.default):
            yield doc.key
        elif doc.key == key and (followed := reference(doc.default)):
            yield followed


def _named(docs: dict[str, KeyDoc], key: str) -> Iterator[str]:
    """A text names a key of its own section by its last part, any other key in full."""
    for doc in docs.values():
        if doc.section:
            continue
        if _mentions(docs[key].meaning, doc.key, key) or _mentions(doc.meaning, key, doc.key):
            yield doc.key


def _mentions(text: str, key: str, of: str) -> bool:
    words = set(re.findall(r"[\w.\-]+\w", text))
    section, _, last = key.rpartition(".")
    beside = section == of.rpartition(".")[0] and "_" in last and last in words
    return beside or any(key == word or (word.count(".") and key.endswith(f".{word}")) for word in words)


def _namesakes(docs: dict[str, KeyDoc], key: str) -> Iterator[str]:
    """The same field of the same section class elsewhere, such as the critic's learning rate."""
    own = docs[key]
    yield from (d.key for d in docs.values() if d.told_in == own.told_in and not d.section)
