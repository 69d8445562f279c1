"""A run on disk: the resolved configuration, versions, and trajectories as lines of JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("hone-rl", "torch", "transformers", "numpy", "safetensors", "pyarrow", "hydra-core", "pydantic")


def write_config(directory: Path, yaml_text: str) -> None:
    """config.yaml, which loads back to the same configuration; versions stand in comments above it."""
    directory.mkdir(parents=True, exist_ok=True)
    versions = [f"# python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"# {package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"# {package} (not installed as a package)")
    (directory / "config.yaml").write_text("\n".join(versions) + "\n" + yaml_text)


def dump_trajectories(directory: str | Path, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """<directory>/<step>.jsonl with one object per trajectory: input, output, gts, score, step, extras."""
    folder = Path(directory).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{step}.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps({**row, "step": step}, ensure_ascii=False, default=str) + "\n")
