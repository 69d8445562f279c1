"""How many processes a command asks for, and where, by its keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hone.cli import preflight
from hone.cli.processes import processes
from hone.config.load import preview
from tests.shows import shows

KEYS = {
    "trainer.nnodes": ("3", "nodes", 3),
    "trainer.n_gpus_per_node": ("5", "ranks_per_node", 5),
    "trainer.ray_wait_register_center_timeout": ("17", "deadline", 17),
    "trainer.seed": ("9", "seed", 9),
    "ray_init.address": ("auto", "address", "auto"),
    "ray_init.num_cpus": ("6", "num_cpus", 6),
    "ray_init.timeline_json_file": ("t.json", "timeline", "t.json"),
}


def options_of(command: str, *argv: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[Any] = []
    executor = SimpleNamespace(shutdown=lambda: None)
    monkeypatch.setattr("hone.cluster.executor_for", lambda options: (asked.append(options), executor)[1])
    with processes(preview(command, argv).config) as started:
        assert started is executor
    return asked[0]


@shows(*KEYS)
@shows(*KEYS, command="sft")
@shows(*KEYS, command="generate")
@pytest.mark.parametrize("command", ["ppo", "sft", "generate"])
def test_the_processes_are_those_of_the_keys(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [f"{key}={value}" for key, (value, *_) in KEYS.items()]
    found = options_of(command, *argv, monkeypatch=monkeypatch)
    plain = options_of(command, monkeypatch=monkeypatch)
    for _, name, expected in KEYS.values():
        assert getattr(found, name) == expected != getattr(plain, name)


@shows("trainer.balance_batch")
def test_rows_are_dealt_by_their_lengths_unless_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for balanced in (True, False):
        argv = f"trainer.balance_batch={balanced}"
        assert options_of("ppo", argv, monkeypatch=monkeypatch).dealing.balance == balanced


@shows("trainer.device")
@shows("trainer.device", command="sft")
@shows("trainer.device", command="generate")
@pytest.mark.parametrize("command", ["ppo", "sft", "generate"])
def test_a_gpu_that_is_asked_for_and_not_there_is_missed_before_a_run(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("hone.cli.preflight_models.require_reachable", lambda key, path: None)

    def found(device: str, here: bool = True) -> str:
        config = preview(command, [f"trainer.device={device}", "trainer.n_gpus_per_node=1"]).config
        return " ".join(preflight.findings(config, here=here))

    assert "trainer.device" not in found("cpu") + found("cuda", here=False)
    assert "trainer.device=cuda" in found("cuda")
