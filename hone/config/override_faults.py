"""What is wrong with an override that Hydra's grammar refuses, in the words of whoever wrote it.

The grammar's own messages speak of its tokens ("missing EQUAL at '<EOF>'"), so the text is looked at here.
"""

from __future__ import annotations

import re

from .problems import Problem, in_brief

GRAMMAR = "an override such as a.b=1, +a.b=1, ++a.b=1 or ~a.b"
_KEY = re.compile(r"[\w\-$]+(\.[\w\-$]+)*", re.ASCII)
_CALL = re.compile(r"\s*(\w+)\(.*\)\s*")
_OPENED = {"[": "]", "{": "}", "(": ")"}
_HUGE = re.compile(r"\d{4000}")  # Python reads no longer numbers from text
_ORDINARY = re.compile(r"[\w\s\-./:+%*@?|~\\]", re.ASCII)  # what a value may hold without quotes


def unreadable(text: str) -> Problem:
    """The problem of `text`, which could not be read."""
    name, equals, value = text.partition("=")
    key = re.sub(r"^(\+\+?|~)", "", name)
    wrong, fix = _fault(key, value if equals else None)
    return Problem(text, wrong, GRAMMAR, fix)


def _fault(key: str, value: str | None) -> tuple[str, str]:
    """(what is wrong, what to do); value: None without an equals sign"""
    if not key.strip():
        return "names no key", "write the key in full"
    if value is None:
        before, colon, after = key.partition(":")
        fix = f"write {before}={after.strip() or 'VALUE'}" if colon else f"write {key.strip()}=VALUE"
        return "has no '=' between key and value", fix
    if not _KEY.fullmatch(key):
        names = [part for part in re.split(r"[.\s]+", key.strip().strip("+~")) if part]
        fix = f"write {'.'.join(names)}={value.strip()}" if _KEY.fullmatch(".".join(names)) else "write the key's name"
        return f"{key!r} is no key: names are joined by single dots, without spaces", fix
    return _fault_of_value(key, value)


def _fault_of_value(key: str, value: str) -> tuple[str, str]:
    if value.startswith("="):
        return "has two '='", f"write {key}={value.lstrip('=')}"
    if open_quote := _open_quote(value):
        return f"a quote ({open_quote}) is not closed", f"close it: {in_brief(f'{key}={value}{open_quote}')}"
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", value)
    if _HUGE.search(bare):
        return f"is a number of {len(bare)} digits", "set a smaller one, below 2**63"
    if "${" in bare and bare.count("${") > bare.count("}"):
        return "a reference (${) is not closed", f"write {key}='${{section.key}}'"
    if _QUOTED_KEY.search(value):
        bare_keys = _QUOTED_KEY.sub(r"\1\2\3", value)
        return "the keys of an object stand in quotes", f"write them without: {key}={bare_keys}"
    if bracket := _unbalanced(bare):
        return bracket, f"correct it, or quote the text: {_quoted(key, value)}"
    if call := _CALL.fullmatch(bare):
        return f"{call.group(1)}(...) is no function that overrides have", f"quote the text: {_quoted(key, value)}"
    odd = next((c for c in bare if not _ORDINARY.match(c) or c in "\n\r"), None)
    what = f"the value holds {odd!r}, which has to stand in quotes" if odd else "the value is no single value"
    return what, f"quote it: {_quoted(key, value)}"


_QUOTED_KEY = re.compile(r"([{,]\s*)[\"']([^\"']*)[\"'](\s*:)")


def _quoted(key: str, value: str) -> str:
    """For a shell: single quotes around all that the double ones of the grammar are part of."""
    inside = value.strip().replace('"', '\\"')
    return in_brief(f"{key}='\"{inside}\"'")


def _open_quote(value: str) -> str | None:
    within = None
    for i, character in enumerate(value):
        if i and value[i - 1] == "\\":
            continue
        if within is None and character in "'\"":
            within = character
        elif character == within:
            within = None
    return within


def _unbalanced(bare: str) -> str | None:
    opened: list[str] = []
    for character in bare:
        if character in _OPENED:
            opened.append(character)
        elif character in _OPENED.values() and (not opened or _OPENED[opened.pop()] != character):
            return f"a bracket ({character}) is closed that was not opened"
    return f"a bracket ({opened[-1]}) is not closed" if opened else None
