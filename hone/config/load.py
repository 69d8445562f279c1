"""From a command line to a typed, checked configuration, or one error with everything that is wrong."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .check import cross_field_problems
from .compose import compose
from .derive import derive
from .notices import notices
from .origins import origins
from .paths import path_problems
from .problems import ConfigError, Problem
from .schema.base import Node
from .support import unsupported
from .validate import follows, resolve, strip_unknown, validate, without_echoes
from .written import as_yaml


@dataclass(frozen=True)
class Loaded:
    """A configuration that can run. `user_keys` are the dotted keys set in a file or an override; `origins` says of
    each key that has another source than the default where its value came from."""

    config: Any
    user_keys: frozenset[str]
    notices: list[str]
    origins: Mapping[str, str] = field(default_factory=dict)

    def to_yaml(self) -> str:
        """The resolved configuration; loading it again gives the same one."""
        return as_yaml(self.config.model_dump(by_alias=True))


@dataclass(frozen=True)
class _Draft:
    config: Node
    user_keys: frozenset[str]
    problems: list[Problem]
    notices: list[str]
    follows: Mapping[str, tuple[str, ...]]
    spelled: Mapping[str, str]
    origins: Mapping[str, str]


def load(command: str, argv: Sequence[str]) -> Loaded:
    """Composes, resolves and checks; raises ConfigError with all problems. `command`: ppo, sft, generate or eval."""
    draft = _draft(command, argv)
    config, faulty = draft.config, {problem.key for problem in draft.problems}
    later = [*cross_field_problems(config), *unsupported(command, config), *path_problems(config)]
    # A judgement that rests on a faulty key was made on its default: leave it out.
    sound = [problem for problem in later if not faulty & {problem.key, *problem.involves}]
    _raise_any(command, draft, sound)
    found = [*draft.notices, *notices(config, draft.user_keys)]
    return Loaded(config, draft.user_keys, found, draft.origins)


def preview(command: str, argv: Sequence[str]) -> Loaded:
    """What `load` would give, held against the schema only: it need not be able to run on this machine."""
    draft = _draft(command, argv)
    _raise_any(command, draft, [])
    return Loaded(draft.config, draft.user_keys, draft.notices, draft.origins)


def _raise_any(command: str, draft: _Draft, later: list[Problem]) -> None:
    problems = without_echoes([*draft.problems, *later], draft.follows)
    if problems:
        as_written = (_as_written(problem, draft.spelled) for problem in problems)
        raise ConfigError(command, list(dict.fromkeys(as_written)), config=draft.config)


def _as_written(problem: Problem, spelled: Mapping[str, str]) -> Problem:
    """The problem of a key that was set by another name says so."""
    name = spelled.get(problem.key)
    return replace(problem, wrong=f"{problem.wrong} (set as {name})") if name else problem


def _draft(command: str, argv: Sequence[str]) -> _Draft:
    composition = compose(command, argv)
    schema, tree = composition.preset.schema, composition.tree
    before = copy.deepcopy(tree)
    derived = derive(command, composition)
    problems = [*composition.problems, *strip_unknown(tree, schema)]
    followed = follows(tree)
    fallback = composition.preset.resolved()
    resolved, unresolved = resolve(tree, fallback)
    config, mistyped = validate(resolved, schema, fallback)
    problems = without_echoes([*problems, *unresolved, *mistyped, *derived.problems], followed)
    found = origins(composition, before, derived.notices)
    user_keys = frozenset(composition.user_keys)
    said = [*composition.notices, *derived.notices]
    return _Draft(config, user_keys, problems, said, followed, derived.spelled, found)
