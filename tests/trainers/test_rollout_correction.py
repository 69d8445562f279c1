"""The rollout's correction does the same under each of its names."""

from __future__ import annotations

from tests.trainers.runs import ACTOR, ROLLOUT, Stage, same_weights

# The sampler differs from the trainer, so that there is something to correct.
FIRE = f"{ROLLOUT}.use_fire_sampling=True"
NEW = "algorithm.rollout_correction"


def test_three_spellings_of_one_correction_train_the_same_weights(stage: Stage) -> None:
    plain = stage.run_ppo("plain", FIRE)
    runs = [
        stage.run_ppo(f"run{i}", FIRE, *keys)
        for i, keys in enumerate(
            [
                ["algorithm.rollout_is=True", "algorithm.rollout_is_threshold=1.1"],
                [f"{ACTOR}.rollout_is=True", f"{ACTOR}.rollout_is_threshold=1.1"],
                [f"{NEW}.rollout_is=token", f"{NEW}.rollout_is_threshold=1.1"],
            ]
        )
    ]
    assert all(same_weights(runs[0].weights(), run.weights()) for run in runs)
    assert not same_weights(plain.weights(), runs[0].weights())


def test_rejection_alone_drops_tokens_and_weighs_none(stage: Stage) -> None:
    bounds = [f"{NEW}.rollout_rs_threshold=1.001", f"{NEW}.rollout_rs=token"]
    rejected = stage.run_ppo("rejected", FIRE, *bounds)
    weighed = stage.run_ppo("weighed", FIRE, *bounds, f"{NEW}.rollout_is=token")
    plain = stage.run_ppo("plain", FIRE)
    assert not same_weights(rejected.weights(), plain.weights())
    assert not same_weights(rejected.weights(), weighed.weights())
    wide = stage.run_ppo("wide", FIRE, f"{NEW}.rollout_rs=token", f"{NEW}.rollout_rs_threshold=1e6")
    assert same_weights(wide.weights(), plain.weights())  # nothing is dropped, and the weights are all 1
