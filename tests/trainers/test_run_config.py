"""The config.yaml of a run is that run's configuration again."""

from __future__ import annotations

import pytest

from hone.config import load
from tests.trainers.runs import ACTOR, ROLLOUT, Stage


@pytest.mark.parametrize("command", ["ppo", "sft"])
def test_the_configuration_of_a_run_loads_back_to_the_same_one(stage: Stage, command: str) -> None:
    if command == "ppo":
        argv = stage.ppo("run", "algorithm.rollout_is=True", f"{ACTOR}.optim.warmup_style=cosine", f"{ROLLOUT}.top_p=0.9",
                         "critic.ppo_micro_batch_size=4", "trainer.worker_nsight_options.capture-range-end=null")  # fmt: skip
        run = stage.run_ppo("run", *argv)
    else:
        argv = stage.sft("run", "optim.warmup_steps_ratio=0.5")
        run = stage.run_sft("run", *argv)
    first = load(command, argv)
    again = load(command, ["--config-path", str(run.directory), "--config-name", "config"])
    assert again.config == first.config
    assert again.to_yaml() == first.to_yaml()
