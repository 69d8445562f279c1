"""A run on disk: the resolved configuration, versions, and trajectories as lines of JSON."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hone.disk import naming
from hone.tracking.strict_json import dumps

PACKAGES = ("hone-rl", "torch", "transformers", "numpy", "safetensors", "pyarrow", "hydra-core", "pydantic")
CONFIG = "config.yaml"
MOST_NAMED = 20
ABSENT = object()

logger = logging.getLogger(__name__)


def write_config(directory: Path, yaml_text: str, done: int = 0) -> None:
    """config.yaml, which loads back to the same configuration; versions stand in comments above it.

    done: steps that a resumed run has behind it. If they were made with other values, these are named and their file
    is kept as config.before_step_<done + 1>.yaml.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / CONFIG
    if done:
        _keep_earlier(path, yaml_text, done)
    temporary = path.with_suffix(".tmp")
    with naming(temporary):
        temporary.write_text("\n".join(_versions()) + "\n" + yaml_text, encoding="utf-8")
    temporary.replace(path)


def _versions() -> Iterator[str]:
    yield f"# python {platform.python_version()}"
    for package in PACKAGES:
        try:
            yield f"# {package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"# {package} (not installed as a package)"


def _keep_earlier(path: Path, yaml_text: str, done: int) -> None:
    changes = _changes(path, yaml_text)
    if not changes:
        return
    kept = path.with_name(f"config.before_step_{done + 1}.yaml")
    if not kept.exists():  # a second resume after the same step: the first file is the one that made the steps
        path.rename(kept)
    more = f"\n  and {len(changes) - MOST_NAMED} more" if len(changes) > MOST_NAMED else ""
    named = "".join(f"\n  {change}" for change in changes[:MOST_NAMED])
    logger.warning("the configuration has changed since step %d (earlier values: %s):%s%s", done, kept, named, more)


def _changes(path: Path, yaml_text: str) -> list[str]:
    """`key: earlier value -> value` for every key that is not the same."""
    if not path.exists():
        return []
    try:
        before = dict(_leaves(yaml.safe_load(path.read_text(encoding="utf-8")), ""))
    except (yaml.YAMLError, UnicodeDecodeError):
        return [f"{path} cannot be read, and is compared with nothing"]
    after = dict(_leaves(yaml.safe_load(yaml_text), ""))
    keys = [key for key in {**before, **after} if before.get(key, ABSENT) != after.get(key, ABSENT)]
    return [f"{key}: {_shown(before, key)} -> {_shown(after, key)}" for key in keys]


def _leaves(section: Any, key: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(section, dict) or not section:
        yield key, section
        return
    for name, value in section.items():
        yield from _leaves(value, f"{key}.{name}" if key else str(name))


def _shown(values: Mapping[str, Any], key: str) -> str:
    return f"{values[key]!r:.80}" if key in values else "(no such key)"


def dump_trajectories(directory: str | Path, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """<directory>/<step>.jsonl with one object per trajectory: input, output, gts, score, step, extras."""
    folder = Path(directory).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}.jsonl"
    with naming(path), path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(dumps({**row, "step": step}) + "\n")
