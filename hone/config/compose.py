"""Puts a raw configuration together: preset, then the user's YAML, then overrides. Nothing is resolved here."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from .command_line import CommandLine, parse_command_line
from .file_faults import UNREADABLE, faulty_defaults, unreadable_file
from .names import chooses_a_group, is_other_name
from .overrides import apply_overrides, not_a_section, parse_overrides
from .presets import DEFAULT_PRESET, PRESETS, Preset, register_with_hydra
from .problems import ConfigError, Problem
from .schema.walk import document, knows
from .suggest import nearest_choice
from .tree import Tree, get, leaves, merge, put, with_text_keys


@dataclass
class Composition:
    """A raw tree with interpolations as text, and which of its keys the user set; `overridden` are those of the command
    line, the others are of `file`."""

    preset: Preset
    defaults: Tree
    tree: Tree
    user_keys: set[str]
    problems: list[Problem]
    notices: list[str] = field(default_factory=list)
    overridden: set[str] = field(default_factory=set)
    file: Path | None = None


def compose(command: str, argv: Sequence[str]) -> Composition:
    """Reads the command line and the file it names. A file that cannot be read ends the matter at once."""
    line = parse_command_line(command, argv)
    groups = [text for text in line.overrides if _is_group(text, line.config_dir)]
    overrides, problems = parse_overrides([text for text in line.overrides if text not in groups])
    try:
        composition = _from_sources(command, line, groups)
    except UNREADABLE as error:
        problem = unreadable_file(_config_file(command, line), line.config_name or command, error)
        raise ConfigError(command, [problem, *problems]) from error
    schema = composition.preset.schema
    flattened = _restore_sections(composition)
    overrides = [_group_as_key(command, override) for override in overrides]
    found = apply_overrides(
        overrides,
        composition.tree,
        schema=schema,
        known=lambda key: knows(schema, key) or is_other_name(command, key),
        defaults=composition.defaults,
        user_keys=composition.user_keys,
    )
    values = {override.key_or_group: with_text_keys(override.value()) for override in overrides}
    said = {key for name, value in values.items() for key, _ in leaves({name: value})}
    composition.overridden = said & composition.user_keys
    composition.problems = [*problems, *flattened, *found]
    return composition


def _group_as_key(command: str, override: Override) -> Override:
    """`engine=fsdp` chooses one of verl's files, which hone has not: kept under a name of its own, to be judged."""
    if chooses_a_group(command, override.key_or_group) and not isinstance(override.value(), dict):
        return replace(override, key_or_group=f"{override.key_or_group}=")
    return override


def _restore_sections(composition: Composition) -> list[Problem]:
    """A section that a file gives a single value is reported and keeps its defaults; one with nothing below it, as when
    all its lines are comments, just keeps them."""
    problems = []
    for key, doc in document(composition.preset.schema).items():
        value = get(composition.tree, key, None)
        if doc.section and not isinstance(value, dict):
            if value is not None:
                problems.append(not_a_section(key, value))
            put(composition.tree, key, copy.deepcopy(get(composition.defaults, key)))
    return problems


def _is_group(override: str, config_dir: Path | None) -> bool:
    """`experiment=long` chooses a file when the config folder has a folder `experiment`."""
    group = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return config_dir is not None and bool(group) and (config_dir / group).is_dir()


def _from_sources(command: str, line: CommandLine, groups: list[str]) -> Composition:
    path = _config_file(command, line)
    written = read_yaml(command, path) if path else {}
    preset = _preset_of(command, written) if path else PRESETS[line.config_name or DEFAULT_PRESET[command]]
    defaults = preset.tree()
    user_keys = {key for key, _ in leaves(written) if key.split(".")[0] != "defaults"}
    notices: list[str] = []
    if "defaults" in written or groups:
        folder = path.parent if path else line.config_dir or Path.cwd()
        written, notices = _compose_with_hydra(folder, path.stem if path else str(line.config_name), groups)
        user_keys |= {key for key, value in leaves(written) if get(defaults, key, None) != value}
    return Composition(preset, defaults, merge(copy.deepcopy(defaults), written), user_keys, [], notices, file=path)


def _config_file(command: str, line: CommandLine) -> Path | None:
    """The user's YAML file, or None for a preset."""
    name = line.config_name
    folder = line.config_dir or Path.cwd()
    if name is None:
        if line.config_dir is not None:
            raise ConfigError(command, [_no_file("--config-path", "is given without --config-name", command, folder)])
        return None
    for ending in (".yaml", ".yml"):
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    if name in PRESETS and PRESETS[name].command == command:
        return None
    raise ConfigError(command, [_no_file(name, f"is neither a preset nor a YAML file in {folder}", command, folder)])


def _no_file(key: str, wrong: str, command: str, folder: Path) -> Problem:
    presets = [name for name, preset in PRESETS.items() if preset.command == command]
    files = sorted(path.stem for path in folder.glob("*.y*ml") if path.is_file()) if folder.is_dir() else []
    near = nearest_choice(key, presets + files, cutoff=0.75)
    fix = f"did you mean {near}?" if near else "write --config-path DIR --config-name NAME"
    return Problem(key, wrong, "one of " + ", ".join(presets + files[:10]), fix)


def read_yaml(command: str, path: Path) -> Tree:
    """What a file says, as it is written."""
    written = OmegaConf.to_container(OmegaConf.load(path))
    if not isinstance(written, dict):
        raise ConfigError(command, [Problem(str(path), "holds no keys", "a YAML mapping", "write key: value lines")])
    if not isinstance(written.get("defaults", []), list):
        wrong, fix = f"is {written['defaults']!r}", f"write defaults: [{DEFAULT_PRESET[command]}, _self_]"
        raise ConfigError(command, [Problem("defaults", wrong, "a list of presets and files", fix)])
    if problem := faulty_defaults(str(path), written.get("defaults", [])):
        raise ConfigError(command, [problem])
    tree: Tree = with_text_keys(written)
    return tree


def _preset_of(command: str, written: Tree) -> Preset:
    named = [name for name in written.get("defaults") or [] if isinstance(name, str) and name in PRESETS]
    fitting = [name for name in named if PRESETS[name].command == command]
    if named and not fitting:
        wrong = f"names {named[0]}, a preset of `hone {PRESETS[named[0]].command}`"
        expected = f"a preset of this command, such as {DEFAULT_PRESET[command]}"
        raise ConfigError(command, [Problem("defaults", wrong, expected, "change the defaults list")])
    return PRESETS[fitting[0] if fitting else DEFAULT_PRESET[command]]


def _compose_with_hydra(folder: Path, name: str, groups: list[str]) -> tuple[Tree, list[str]]:
    """The tree, and notices of what Hydra only warns of."""
    register_with_hydra()
    with (
        warnings.catch_warnings(record=True) as caught,
        initialize_config_dir(version_base="1.3", config_dir=str(folder.absolute())),
    ):
        warnings.simplefilter("always")
        config = hydra_compose(config_name=name, overrides=groups)
    composed: Tree = with_text_keys(OmegaConf.to_container(config))
    return composed, list(dict.fromkeys(said for warning in caught if (said := _in_words(str(warning.message), name))))


def _in_words(warning: str, name: str) -> str | None:
    if missing := re.search(r"hydra\.searchpath.*path=(\S+) is not available", warning):
        return f"hydra.searchpath names {missing.group(1)}, which is no folder here: nothing is looked for in it"
    if "missing `_self_`" in warning:
        return f"the defaults list of {name} lacks _self_: the file's own keys come after all that it names"
    return None
