"""What is wrong with a ${reference} that leads nowhere, in plain words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, UnsupportedInterpolationType

from .problems import Problem, in_brief
from .suggest import nearest_keys

EXPECTED = "${section.key} of a key that exists"
_NAME = re.compile(r"'([^']*)'")


def unresolved(key: str, value: Any, error: Exception, known: Iterable[str]) -> Problem:
    """The problem of `key`, whose raw `value` could not be resolved; `known` are all keys."""
    said = str(error).splitlines()[0]
    named = _NAME.search(said)
    name = named.group(1) if named else ""
    if "Environment variable" in said:
        fix = f"set it, or write ${{oc.env:{name},DEFAULT}}"
        return Problem(key, f"the environment variable {name} is not set", "one that is", fix)
    if isinstance(error, UnsupportedInterpolationType):
        kind = said.rpartition(" ")[2]
        return Problem(key, f"${{{kind}:...}} is nothing known", f"{EXPECTED}, or ${{oc.env:NAME}}", "correct it")
    if "Recursive" in said:
        return Problem(key, f"{value} leads back to {key}", "a value", "give one of the keys in the circle a value")
    if "parent node" in said:
        return Problem(key, f"{value} is the section that {key} is in", EXPECTED, "name one key of it")
    if isinstance(error, InterpolationToMissingValueError):
        return Problem(key, f"{value} leads to a key without a value (???)", EXPECTED, "give that key a value")
    if isinstance(error, InterpolationKeyError) and name:
        return Problem(key, f"there is no key {name}, which {value} refers to", EXPECTED, _instead(name, known))
    return Problem(key, f"{value} cannot be resolved: {in_brief(said)}", EXPECTED, "correct the reference")


def _instead(name: str, known: Iterable[str]) -> str:
    if name in os.environ:
        return f"write ${{oc.env:{name}}} for the environment variable"
    near = nearest_keys(name, known)
    return "did you mean " + " or ".join(near) + "?" if near else "correct the reference"
