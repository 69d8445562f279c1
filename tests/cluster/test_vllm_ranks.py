"""vLLM on several ranks, run by `make test-vllm`: an engine for each, or one of which every rank has a part."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hone.rollout.watchdog import MARK, processes_with
from tests.shows import shows
from tests.trainers.runs import ROLLOUT, Run, Stage
from tests.trainers.test_vllm_runs import VLLM, generated, generation

pytest.importorskip("vllm")
pytest.importorskip("ray")
pytestmark = pytest.mark.slow
PARTS = f"{ROLLOUT}.tensor_model_parallel_size"
RANKS = ("trainer.n_gpus_per_node=2", "ray_init.num_cpus=2")


class Command:
    """A run of hone in a process of its own, all of whose processes can be found: they inherit an entry of its
    environment, over which Ray would write the names that it gives them."""

    def __init__(self, command: str, argv: list[str], directory: Path) -> None:
        self.mark = f"HONE_TEST={directory.name}-{os.getpid()}-{time.monotonic_ns()}"
        environment = {**os.environ, "SPT_NOENV": "1", "HONE_TEST": self.mark.partition("=")[2]}
        line = [sys.executable, "-u", "-m", "hone", command, *argv]
        self.process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)

    @property
    def processes(self) -> list[int]:
        return processes_with(self.mark)

    @property
    def engines(self) -> int:
        """Of how many engines there are processes."""
        marks = set()
        for process in self.processes:
            try:
                environment = Path(f"/proc/{process}/environ").read_bytes()
            except OSError:  # it has ended
                continue
            marks |= set(re.findall(rb"\0" + MARK.encode() + rb"=([^\0]+)", environment))
        return len(marks)

    def end(self) -> None:
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(stage: Stage) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def begin(command: str, argv: list[str]) -> Command:
        started.append(Command(command, argv, stage.directory))
        return started[-1]

    yield begin
    for command in started:
        command.end()


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


def wait_until(holds: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.2)


def responses(run: Run, step: int) -> list[str]:
    """The answers of a step, in the order of prompts and of draws."""
    lines = [json.loads(line) for line in (run.directory / "rollouts" / f"{step}.jsonl").open()]
    return [line["output"] for line in lines]


def test_ranks_sample_the_same_with_an_engine_each_and_with_one_of_which_each_has_a_part(stage, start) -> None:
    found = {}
    for parts in (2, 1):
        dumps = f"trainer.rollout_data_dir={stage.directory}/{parts}/rollouts"
        argv = stage.ppo(f"{parts}", *VLLM, *RANKS, f"{PARTS}={parts}", dumps, f"{ROLLOUT}.dtype=float32")
        command = start("ppo", argv)
        assert command.process.wait(600) == 0
        wait_until(lambda command=command: not command.processes, seconds=30)
        run = Run(stage.directory / f"{parts}")
        assert all(line["training/rollout_probs_diff_max"] < 1e-4 for line in run.lines())
        found[parts] = [responses(run, step) for step in (1, 2)]
    assert found[1] == found[2] and len(found[1][0]) == 8 and len(set(found[1][0])) > 4


@shows("rollout.tensor_model_parallel_size", command="generate")
def test_ranks_with_a_part_each_generate_what_hones_own_engine_does(stage, start) -> None:
    for name, more in {"hf": [], "vllm": [*RANKS, "rollout.tensor_model_parallel_size=2"]}.items():
        assert start("generate", [*generation(stage, name), *more]).process.wait(600) == 0
    assert generated(stage, "vllm") == generated(stage, "hf")


@pytest.mark.parametrize(
    ("moment", "how"),
    [("engines start", signal.SIGKILL), ("engines start", signal.SIGINT), ("step 1 ", signal.SIGKILL)],
)
def test_nothing_is_left_after_the_driver_is_gone(stage, start, moment: str, how: signal.Signals) -> None:
    more = ("trainer.total_training_steps=500", "trainer.save_freq=-1", "trainer.logger=[console]")
    command = start("ppo", stage.ppo("run", *VLLM, *RANKS, *more))
    if moment == "engines start":
        wait_until(lambda: command.engines == 2)
    else:
        assert any(line.startswith(moment) for line in command.process.stdout)
    command.process.send_signal(how)
    assert command.process.wait(60) != 0
    wait_until(lambda: not command.processes, seconds=150)  # the helpers of a killed Ray look for it for a minute
