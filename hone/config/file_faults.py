"""What is wrong with a YAML file that cannot be read, in plain words and with its place. YAML's parser, OmegaConf and
Hydra each have words of their own for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from .problems import Problem, in_brief

# What YAML, OmegaConf and Hydra raise over a file: ValueError also stands for bytes that are no text, OSError for files
# that hold a single number.
UNREADABLE = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError, OSError, RecursionError)

MAPPING, CORRECT = "key: value lines", "correct the file"
# part of what YAML's parser says -> (what is wrong, what to do)
YAML_FAULTS: tuple[tuple[str, str, str], ...] = (
    (r"found character '\\t'", "a tab", "indent with spaces"),
    (r"found character '(.)' that cannot start", "a value begins with {0}", "put the value in quotes"),
    (r"found duplicate key (.*)", "the key {0} stands there twice", "keep one of the two"),
    (r"mapping values are not allowed", "a second ': ' in one line", "put the value in quotes, or begin a new line"),
    (r"expected <block end>", "the indentation fits no line above", "begin the keys of a section in one column"),
    (r"expected ',' or '[\]}]'|expected the node content", "a list or object is not closed", "close it with ] or }}"),
    (r"found unexpected end of stream", "a quote is not closed", "close it"),
    (r"found undefined alias '?([^']*)'?", "*{0} refers to nothing: there is no &{0} before it", "quote a text with *"),
    (r"constructor for the tag '(.*)'", "the tag {0} is unknown", "remove the tag"),
    (r"found another document|expected a single document", "a second document begins (---)", "keep one in a file"),
    (r"found unhashable key", "a key is a list or an object", "write a name as the key"),
)  # fmt: skip


def unreadable_file(path: Path | None, name: str, error: Exception) -> Problem:
    """The problem of the file at `path`, or of what is called `name`, over which `error` was raised."""
    where = str(path or name)
    if isinstance(error, yaml.MarkedYAMLError):
        return _of_yaml(where, error)
    if isinstance(error, RecursionError):
        return Problem(where, "is nested too deeply, or its defaults list leads back to it", MAPPING, CORRECT)
    if isinstance(error, UnicodeDecodeError | yaml.reader.ReaderError):
        return Problem(where, f"is no text in UTF-8{_place_of(error)}", "a text file", "save it as UTF-8")
    if isinstance(error, MissingConfigException):
        return _missing(where, error)
    if open_group := re.search(r"You must specify '([^']*)'", str(error)):
        group = open_group.group(1)
        return Problem(f"{where}, defaults", f"{group} is left open (???)", "a choice", f"add {group}=NAME")
    if isinstance(error, HydraException):
        return Problem(where, f"its defaults list cannot be read: {_brief(error)}", "names of files", CORRECT)
    if isinstance(error, OmegaConfBaseException):
        return _of_omegaconf(where, error)
    if isinstance(error, OSError) and error.strerror:
        return Problem(where, f"cannot be read: {error.strerror.lower()}", "a file that can be read", CORRECT)
    if isinstance(error, OSError):  # OmegaConf's own, over a file that is one number
        return Problem(where, "holds a single value", MAPPING, "write key: value lines")
    return Problem(where, f"cannot be read: {_brief(error)}", MAPPING, CORRECT)


def _of_yaml(where: str, error: yaml.MarkedYAMLError) -> Problem:
    said = " ".join(str(part) for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    file = where if mark is None or mark.name.startswith("<") else mark.name
    place = f"{file}, line {mark.line + 1}, column {mark.column + 1}" if mark else file
    for pattern, wrong, fix in YAML_FAULTS:
        if found := re.search(pattern, said):
            return Problem(place, wrong.format(*found.groups()), "", fix.format(*found.groups()))
    return Problem(place, f"is not YAML: {in_brief(said)}", MAPPING, CORRECT)


def _place_of(error: UnicodeDecodeError | yaml.reader.ReaderError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f" (byte {error.object[error.start]:#04x} at position {error.start})"
    return f" (position {error.position})"


def _missing(where: str, error: MissingConfigException) -> Problem:
    wanted, options = error.missing_cfg_file or "", error.options or ()
    if not error.missing_cfg_file:
        return Problem(where, f"its defaults list cannot be read: {_brief(error)}", "names of files", CORRECT)
    others = f"one of {', '.join(options[:10])}" if options else "a preset, or a YAML file beside this one"
    wrong = f"its defaults list names {wanted or 'nothing'}, and there is no such file"
    return Problem(where, wrong, others, "correct the name, or remove it from the list")


def _of_omegaconf(where: str, error: OmegaConfBaseException) -> Problem:
    key, said = str(error.full_key or ""), str(error.msg or error).splitlines()[0]
    place = f"{where}, key {key}" if key else where
    if "key type" in said:
        return Problem(place, "a key is null (~, or nothing before the colon)", "names as keys", "write a name")
    if "primitive type" in said:
        return Problem(
            place, "holds a value that is no text, number, list or section", "one of these", "remove its tag"
        )
    if "token" in said or "input" in said or "${" in said:
        fix = "correct the reference, or write \\${ for the text itself"
        return Problem(place, "holds a ${...} that cannot be read", "${section.key}", fix)
    return Problem(place, f"cannot be read: {in_brief(said)}", MAPPING, CORRECT)


def _brief(error: Exception) -> str:
    """The first sentence, without the places where Hydra looked."""
    said = str(error).partition("Config search path")[0]
    return in_brief(" ".join(said.split()))


def faulty_defaults(where: str, defaults: Sequence[Any]) -> Problem | None:
    """What is wrong with the entries of a defaults list, which are names, or one group with its choice."""
    expected, key = "names of presets and files, or `group: name`", f"{where}, defaults"
    for entry in defaults:
        if isinstance(entry, str) and entry.strip():
            continue
        if not isinstance(entry, dict):
            return Problem(key, f"{entry!r} is no name", expected, "write names, each after a dash")
        if len(entry) != 1:
            wrong = f"one entry has {len(entry)} keys ({', '.join(map(str, entry))})"
            return Problem(key, wrong, expected, "begin each with a dash")
    if list(defaults).count("_self_") > 1:
        return Problem(key, "_self_ stands there twice", "once at most", "keep one of the two")
    return None
