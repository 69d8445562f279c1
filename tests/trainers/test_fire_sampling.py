"""FIRE sampling in a run: training begins its responses hot, and says how far that is from what is trained."""

from __future__ import annotations

import json

from hone.config import load
from tests.trainers.runs import ROLLOUT, Stage

FIRE = f"{ROLLOUT}.use_fire_sampling=True"


def test_training_answers_change_and_validation_does_not(stage: Stage) -> None:
    sampled = [f"{ROLLOUT}.val_kwargs.do_sample=True", f"{ROLLOUT}.val_kwargs.temperature=1.0"]
    outputs = {}
    for name, more in {"plain": [], "fire": [FIRE]}.items():
        dumps = [f"trainer.{kind}_data_dir={stage.directory}/{name}/{kind}" for kind in ("rollout", "validation")]
        run = stage.run_ppo(name, *sampled, *dumps, *more, "trainer.val_before_train=True")
        files = {"train": "rollout/1.jsonl", "val": "validation/0.jsonl"}
        outputs[name] = {kind: [json.dumps(line) for line in run.lines(path)] for kind, path in files.items()}
    assert outputs["plain"]["val"] == outputs["fire"]["val"]
    assert outputs["plain"]["train"] != outputs["fire"]["train"]


def test_the_difference_to_the_trainer_is_measured_announced_and_can_be_corrected(stage: Stage) -> None:
    cold = [f"{ROLLOUT}.temperature=0.2"]
    plain, fire = stage.run_ppo("plain", *cold), stage.run_ppo("fire", *cold, FIRE)
    assert plain.lines()[0]["training/rollout_probs_diff_max"] < 1e-5
    assert fire.lines()[0]["training/rollout_probs_diff_max"] > 1e-3
    weighed = stage.run_ppo("weighed", *cold, FIRE, "algorithm.rollout_is=True", "algorithm.rollout_is_threshold=2")
    assert weighed.lines()[0]["actor/pg_loss"] != fire.lines()[0]["actor/pg_loss"]
    notices = load("ppo", stage.ppo("said", FIRE, f"{ROLLOUT}.fire_temperature=5")).notices
    assert any("drawn at temperature 5 and trained on at 1" in notice for notice in notices)


def test_its_own_temperature_decides_how_far(stage: Stage) -> None:
    mild = stage.run_ppo("mild", FIRE, f"{ROLLOUT}.fire_temperature=1.0")
    plain = stage.run_ppo("plain")
    assert mild.results() == plain.results()
