"""Resolves a raw tree and holds it against the schema; every fault is collected and replaced by the key's default, so
that later checks can go on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from .overrides import unknown_key
from .problems import Problem, in_brief
from .reference_faults import unresolved
from .schema.base import Node
from .schema.walk import KeyDoc, document, fields_of, is_open, knows, section_of
from .suggest import nearest_choice
from .tree import Tree, get, leaves, put

_MENTIONED = re.compile(r"\$\{([\w.\-]+)\}")
_REFERENCE = re.compile(r"^\$\{([\w.\-]+)\}$")


def follows(tree: Tree) -> dict[str, tuple[str, ...]]:
    """The keys that a key's value is made of, for all keys that repeat others or mention them."""
    found = {key: tuple(_MENTIONED.findall(value)) for key, value in leaves(tree) if isinstance(value, str)}
    return {key: mentioned for key, mentioned in found.items() if mentioned}


def reference(value: Any) -> str | None:
    """The key whose value a raw value repeats, if it does nothing else."""
    match = _REFERENCE.match(value) if isinstance(value, str) else None
    return match.group(1) if match else None


def without_echoes(problems: list[Problem], followed: Mapping[str, tuple[str, ...]]) -> list[Problem]:
    """Leaves out the problem of a key that only repeats another key with a problem."""
    faulty = {problem.key for problem in problems}
    return [problem for problem in problems if not _echoes(problem.key, faulty, followed)]


def _echoes(key: str, faulty: set[str], followed: Mapping[str, tuple[str, ...]]) -> bool:
    """Keys that go round in a circle are no echoes of each other: they are the fault."""
    sources = followed.get(key, ())
    return not _goes_round(key, followed) and any(source in faulty for source in sources)


def _goes_round(key: str, followed: Mapping[str, tuple[str, ...]]) -> bool:
    reached: set[str] = set()
    ahead = [*followed.get(key, ())]
    while ahead:
        source = ahead.pop()
        if source not in reached:
            reached.add(source)
            ahead += followed.get(source, ())
    return key in reached


def strip_unknown(tree: Tree, schema: type[Node]) -> list[Problem]:
    """Removes keys that the schema does not have and reports them."""
    unknown = list(_unknown(tree, schema, ""))
    problems = [_unknown_in_file(schema, prefix, name) for _, prefix, name in unknown]
    for section, _, name in unknown:
        del section[name]
    return problems


def _unknown_in_file(schema: type[Node], prefix: str, name: str) -> Problem:
    key, (first, _, rest) = prefix + name, name.partition(".")
    if rest and knows(schema, key):
        fix = f"write it as a section, {first}: {{{rest}: VALUE}}"
        return Problem(key, "is written with dots, as on a command line", "sections in a file", fix)
    return unknown_key(schema, key)


def _unknown(section: Tree, schema: type[Node], prefix: str) -> Any:
    fields = fields_of(schema)
    for name, value in section.items():
        if name not in fields:
            if not is_open(schema):
                yield section, prefix, name
            continue
        child = section_of(fields[name])
        if child is not None and isinstance(value, dict):
            yield from _unknown(value, child, f"{prefix}{name}.")


def resolve(tree: Tree, fallback: Tree) -> tuple[Tree, list[Problem]]:
    """Replaces interpolations by what they refer to."""
    failed: dict[str, tuple[bool, Exception]] = {}
    resolved = _resolve(OmegaConf.create(tree), "", failed)
    problems = [_unresolved(key, missing, error, tree) for key, (missing, error) in failed.items()]
    for problem in problems:
        put(resolved, problem.key, get(fallback, problem.key, None))
    return resolved, problems


def _resolve(section: DictConfig, prefix: str, failed: dict[str, tuple[bool, Exception]]) -> Tree:
    """`failed` gets, by key, whether its value is missing (???), and the error."""
    resolved: Tree = {}
    for name in map(str, section):
        try:
            value = section[name]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            failed[f"{prefix}{name}"] = OmegaConf.is_missing(section, name), error
            continue
        resolved[name] = _resolve(value, f"{prefix}{name}.", failed) if isinstance(value, DictConfig) else value
    return resolved


def _unresolved(key: str, missing: bool, error: Exception, tree: Tree) -> Problem:
    if missing:
        return Problem(key, "is mandatory (???) and has no value", "", f"set {key}=...")
    return unresolved(key, get(tree, key, ""), error, (known for known, _ in leaves(tree)))


def validate(tree: Tree, schema: type[Node], fallback: Tree) -> tuple[Node, list[Problem]]:
    """The typed configuration. Faulty keys take their defaults in it."""
    try:
        return schema.model_validate(tree), []
    except ValidationError as error:
        docs = document(schema)
        errors = {_key_of(e["loc"], docs): e for e in reversed(error.errors())}  # the first error of a key wins
    for key in errors:
        put(tree, key, get(fallback, key))
    problems = [_mistyped(docs[key], e) for key, e in reversed(errors.items())]
    return schema.model_validate(tree), problems


def _key_of(location: tuple[int | str, ...], docs: dict[str, KeyDoc]) -> str:
    """The key an error is about; what follows it in the location are union members and list positions."""
    names = [str(part) for part in location]
    return next(key for i in range(len(names), 0, -1) if (key := ".".join(names[:i])) in docs)


def _mistyped(doc: KeyDoc, error: Any) -> Problem:
    value = error["input"]
    shown, quoted = in_brief(repr(value)), f"quote it to make it text: {doc.key}='\"{value}\"'"
    if doc.choices:
        near = nearest_choice(value, doc.choices)
        fix = _as_list(doc, value) or (f"did you mean {near}?" if near else "")
        return Problem(doc.key, f"{shown} is not a choice", doc.expected, fix)
    if doc.expected.startswith("text") and isinstance(value, (int, float)):
        return Problem(doc.key, f"{shown} is not text", doc.expected, quoted)
    if error["type"] in ("too_short", "too_long") and value:
        wanted = error["ctx"].get("min_length", error["ctx"].get("max_length"))
        return Problem(doc.key, f"{shown} has {len(value)} entries", doc.expected, f"write {wanted} of them")
    if error["type"] in ("empty", "too_short"):
        fix = "give it a value" + (", or null" if doc.expected.endswith("or null") else "")
        return Problem(doc.key, f"{shown} {'has an empty entry' if value else 'is empty'}", doc.expected, fix)
    if error["type"] == "too_large":
        return Problem(doc.key, f"{shown} is out of range", f"{doc.expected}, below 2**63", "set a smaller one")
    if error["type"] == "finite_number":
        return Problem(doc.key, f"{shown} is no finite number", doc.expected, "set a number")
    wrong = f"{shown} is out of range" if "than" in error["type"] else f"{shown} has the wrong type"
    return Problem(doc.key, wrong, doc.expected, _as_list(doc, value) or "change the value")


def _as_list(doc: KeyDoc, value: Any) -> str:
    """What to do about a text that holds a list's entries."""
    if not doc.expected.startswith("a list") or not isinstance(value, str) or "," not in value:
        return ""
    return f"write it as a list, {doc.key}=[{value.strip('[]() ')}]"
