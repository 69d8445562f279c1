"""Plans of runs in miniature, and what was measured of the same runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hone.cli.processes import dealing_of
from hone.config import load
from hone.trainers.planning import plan_of
from hone.trainers.planning.machine import machine_for
from hone.trainers.planning.plan import Plan
from tests.trainers.runs import Stage


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture(scope="session")
def plan() -> Callable[..., Plan]:
    """The plan of `hone ppo` or `hone sft` with the arguments, for a machine like this one."""

    def planned(command: str, argv: list[str], device: str = "cpu", memory_gib: float | None = None) -> Plan:
        loaded = load(command, argv)
        machine = machine_for("cpu", device=device, memory_gib=memory_gib)
        return plan_of(command, loaded, machine, dealing_of(loaded.config))  # type: ignore[arg-type]

    return planned
