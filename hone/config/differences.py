"""Two configurations side by side: the keys whose resolved values differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import Any

from .compose import read_yaml
from .file_faults import UNREADABLE
from .load import preview
from .presets import DEFAULT_PRESET, PRESETS
from .problems import ConfigError, Problem
from .schema.walk import knows
from .suggest import nearest_choice
from .tree import Tree, leaves

ABSENT = object()
CONFIG = "config.yaml"


@dataclass(frozen=True)
class Named:
    """A configuration as it is named on a command line: a preset, a YAML file or a run's folder, then overrides."""

    name: str
    overrides: tuple[str, ...] = ()

    @property
    def file(self) -> Path | None:
        path = Path(expanduser(self.name))
        return path / CONFIG if (path / CONFIG).is_file() else path if path.is_file() else None

    def tree(self, command: str) -> Tree:
        source = str(self.file.absolute()) if self.file else PRESET_OF.get(self.name, self.name)
        config = preview(command, ["--config-name", source, *self.overrides]).config
        tree: Tree = config.model_dump(by_alias=True)
        return tree


PRESET_OF = {**{name: name for name in PRESETS}, **DEFAULT_PRESET}  # a command stands for its own preset


def read_names(arguments: Sequence[str]) -> list[Named]:
    """An override belongs to the configuration before it."""
    named: list[Named] = []
    for argument in arguments:
        if not _is_override(argument):
            named.append(Named(argument))
        elif named:
            named[-1] = Named(named[-1].name, (*named[-1].overrides, argument))
        else:
            raise _unusable(argument, "stands before the configuration that it is for")
    if len(named) != 2:
        found = ", ".join(each.name for each in named) or "none"
        raise _unusable("configurations", f"{len(named)} are named ({found})")
    return named


def _is_override(argument: str) -> bool:
    return not Path(expanduser(argument)).exists() and ("=" in argument or argument[:1] in "+~")


def _unusable(key: str, wrong: str) -> ConfigError:
    expected = "two of: a YAML file, a run's folder, a preset, each with its overrides behind it"
    fix = "write `hone config diff A [overrides] B [overrides]`"
    return ConfigError("config diff", [Problem(key, wrong, expected, fix)])


def command_of(named: Named) -> list[str]:
    """The commands whose configuration this may be, the likeliest first."""
    if named.file is None:
        if named.name not in PRESET_OF:
            raise _no_such(named.name)
        return [PRESETS[PRESET_OF[named.name]].command]
    keys = [key for key, _ in leaves(_written(named.file))]
    unknown = {c: sum(not knows(PRESETS[p].schema, key) for key in keys) for c, p in DEFAULT_PRESET.items()}
    return [command for command, count in unknown.items() if count == min(unknown.values())]


def _written(file: Path) -> Tree:
    """What a file says; nothing where it cannot be read, which loading it will report."""
    try:
        return read_yaml("config diff", file)
    except (*UNREADABLE, ConfigError):
        return {}


def _no_such(name: str) -> ConfigError:
    near = nearest_choice(name, PRESET_OF)
    fix = f"did you mean {near}?" if near else "name a file that exists"
    expected = "a YAML file, the folder of a run, or one of " + ", ".join(PRESET_OF)
    return ConfigError("config diff", [Problem(name, "is neither a file nor a preset", expected, fix)])


def common_command(first: Named, second: Named) -> str:
    """Both must be configurations of one command."""
    of_first, of_second = command_of(first), command_of(second)
    shared = [command for command in of_first if command in of_second]
    if not shared:
        wrong = f"is a configuration of `hone {of_second[0]}`, but {first.name} is one of `hone {of_first[0]}`"
        raise ConfigError("config diff", [Problem(second.name, wrong, "two of the same command", "name another")])
    return shared[0]


def differences(first: Tree, second: Tree) -> Iterator[tuple[str, Any, Any]]:
    """(key, value in the first, value in the second), ABSENT where a free-form section lacks an entry."""
    left, right = dict(leaves(first)), dict(leaves(second))
    for key in [*left, *(key for key in right if key not in left)]:
        a, b = left.get(key, ABSENT), right.get(key, ABSENT)
        if a != b or isinstance(a, bool) != isinstance(b, bool):
            yield key, a, b
