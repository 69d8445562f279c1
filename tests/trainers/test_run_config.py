"""The config.yaml of a run is that run's configuration again."""

from __future__ import annotations

import pytest

from hone.config import load
from tests.trainers.runs import ACTOR, ROLLOUT, Run, Stage, same_weights

MORE = {
    "ppo": [
        "algorithm.rollout_is=True",
        f"{ACTOR}.optim.warmup_style=cosine",
        f"{ROLLOUT}.top_p=0.9",
        "critic.ppo_micro_batch_size=4",
        "+actor_rollout_ref.model.override_config.attention_dropout=0.1",
    ],
    "sft": ["optim.warmup_steps_ratio=0.5", "data.train_max_samples=20"],
}


@pytest.mark.parametrize("command", ["ppo", "sft"])
def test_the_configuration_of_a_run_loads_back_to_the_same_one(stage: Stage, command: str) -> None:
    if command == "ppo":
        argv, run = stage.ppo("run", *MORE["ppo"]), stage.run_ppo("run", *MORE["ppo"])
    else:
        argv, run = stage.sft("run", *MORE["sft"]), stage.run_sft("run", *MORE["sft"])
    first = load(command, argv)
    again = load(command, ["--config-path", str(run.directory), "--config-name", "config"])
    assert again.config == first.config
    assert again.to_yaml() == first.to_yaml()


def test_a_run_started_from_its_own_config_goes_on(stage: Stage) -> None:
    run = stage.run_ppo("run", "trainer.save_freq=1", "trainer.total_training_steps=1")
    whole = stage.run_ppo("whole", "trainer.save_freq=1")
    argv = ["--config-path", str(run.directory), "--config-name", "config", "trainer.total_training_steps=2"]
    longer = Run.ppo(run.directory, argv)
    assert longer.results() == whole.results() and same_weights(longer.weights(), whole.weights())
