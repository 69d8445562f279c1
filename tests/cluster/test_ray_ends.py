"""Nothing of a run over several ranks is left when its command is gone, however it went."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainers.runs import Stage

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


def processes() -> set[str]:
    """Process ids and command lines of everything of Ray's, and of runs."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line for line in listing if any(name in line for name in ("ray::", "raylet", "gcs_server", "hone ppo"))}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_after_the_driver_is_gone(stage: Stage, how: signal.Signals) -> None:
    before = processes()
    argv = stage.ppo("run", "trainer.n_gpus_per_node=2", "trainer.total_training_steps=500", "trainer.save_freq=-1")
    command = [sys.executable, "-m", "hone", "ppo", *argv, "trainer.logger=[console]", "ray_init.num_cpus=2"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=stage.directory)
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith("step 1 "):
            break
    assert processes() - before
    driver.send_signal(how)
    assert driver.wait(60) != 0
    until = time.monotonic() + 150  # the helpers of a killed Ray look for it for a minute
    while processes() - before and time.monotonic() < until:
        time.sleep(1)
    assert not processes() - before
