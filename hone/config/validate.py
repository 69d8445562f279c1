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
from .problems import Problem
from .schema.base import Node
from .schema.walk import KeyDoc, document, fields_of, is_open, section_of
from .suggest import nearest_choice
from .tree import Tree, get, leaves, put

_REFERENCE = re.compile(r"^\$\{([\w.\-]+)\}$")


def follows(tree: Tree) -> dict[str, str]:
    """Which keys do nothing but repeat another key's value: {key: the key it repeats}."""
    found = {key: _REFERENCE.match(value) for key, value in leaves(tree) if isinstance(value, str)}
    return {key: match.group(1) for key, match in found.items() if match}


def without_echoes(problems: list[Problem], followed: Mapping[str, str]) -> list[Problem]:
    """Leaves out the problem of a key that only repeats another key with a problem."""
    faulty = {problem.key for problem in problems}
    return [problem for problem in problems if followed.get(problem.key) not in faulty]


def strip_unknown(tree: Tree, schema: type[Node]) -> list[Problem]:
    """Removes keys that the schema does not have and reports them."""
    unknown = list(_unknown(tree, schema, ""))
    problems = [unknown_key(schema, prefix + name) for _, prefix, name in unknown]
    for section, _, name in unknown:
        del section[name]
    return problems


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
    problems: list[Problem] = []
    resolved = _resolve(OmegaConf.create(tree), "", problems)
    for problem in problems:
        put(resolved, problem.key, get(fallback, problem.key, None))
    return resolved, problems


def _resolve(section: DictConfig, prefix: str, problems: list[Problem]) -> Tree:
    resolved: Tree = {}
    for name in map(str, section):
        try:
            value = section[name]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            problems.append(_unresolved(f"{prefix}{name}", OmegaConf.is_missing(section, name), error))
            continue
        resolved[name] = _resolve(value, f"{prefix}{name}.", problems) if isinstance(value, DictConfig) else value
    return resolved


def _unresolved(key: str, missing: bool, error: Exception) -> Problem:
    if missing:
        return Problem(key, "is mandatory (???) and has no value", "", f"set {key}=...")
    reason = str(error).splitlines()[0]
    return Problem(key, f"cannot be resolved: {reason}", "${section.key} of a key that exists", "correct the reference")


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
    if doc.choices:
        near = nearest_choice(value, doc.choices)
        return Problem(doc.key, f"{value!r} is not a choice", doc.expected, f"did you mean {near}?" if near else "")
    if doc.expected.startswith("text") and isinstance(value, (int, float)):
        fix = f"quote it to make it text: {doc.key}='\"{value}\"'"
        return Problem(doc.key, f"{value!r} is not text", doc.expected, fix)
    if error["type"] in ("empty", "too_short"):
        fix = "give it a value" + (", or null" if doc.expected.endswith("or null") else "")
        return Problem(doc.key, f"{value!r} {'has an empty entry' if value else 'is empty'}", doc.expected, fix)
    if error["type"] == "too_large":
        return Problem(doc.key, f"{value!r} is out of range", f"{doc.expected}, below 2**63", "set a smaller one")
    wrong = f"{value!r} is out of range" if "than" in error["type"] else f"{value!r} has the wrong type"
    return Problem(doc.key, wrong, doc.expected, "change the value")
