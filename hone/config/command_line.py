"""Splits a command line into Hydra's two flags and the overrides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os.path import expanduser  # leaves the home of a user who does not exist as it is written
from pathlib import Path

from .problems import ConfigError, Problem

_FLAGS = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name"}
_USAGE = "--config-path DIR, --config-name NAME, or overrides such as trainer.total_epochs=1"


@dataclass(frozen=True)
class CommandLine:
    """`config_name` is a YAML file's name without its ending, or a preset's."""

    config_dir: Path | None = None
    config_name: str | None = None
    overrides: list[str] = field(default_factory=list)


def parse_command_line(command: str, argv: Sequence[str]) -> CommandLine:
    """Reads argv; a flag that is unknown or has no value is reported at once, since nothing can be composed then."""
    flags: dict[str, str] = {}
    overrides: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            overrides.append(argument)
        elif flag not in _FLAGS:
            raise ConfigError(command, [Problem(argument, "is not a flag of this command", _USAGE, "remove it")])
        elif _FLAGS[flag] in flags:
            fix = "keep one; a file's defaults list names further files"
            raise ConfigError(command, [Problem(argument, "is given twice", "one file to start from", fix)])
        else:
            flags[_FLAGS[flag]] = value if equals else _next_value(command, flag, arguments)
    return _to_command_line(flags, overrides)


def _next_value(command: str, flag: str, arguments: Iterator[str]) -> str:
    value = next(arguments, None)
    if value is None:
        raise ConfigError(command, [Problem(flag, "has no value", _USAGE, f"write {flag} VALUE")])
    return value


def _to_command_line(flags: dict[str, str], overrides: list[str]) -> CommandLine:
    name = flags.get("name")
    config_dir = Path(expanduser(flags["path"])) if "path" in flags else None
    if name is None:
        return CommandLine(config_dir, None, overrides)
    for ending in (".yaml", ".yml"):
        name = name.removesuffix(ending)
    path = Path(expanduser(name))
    if path.is_absolute():  # --config-name /runs/a.yaml needs no --config-path
        return CommandLine(path.parent, path.name, overrides)
    return CommandLine(config_dir, name, overrides)
