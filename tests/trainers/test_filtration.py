"""PF-PPO: the update runs over a draw from the step's trajectories."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hone.batch import Batch
from hone.config.schema.algorithm import PfPpo
from hone.trainers.filtration import redraw
from hone.workers.actor import ActorWorker
from tests.trainers.ragged import random_batch
from tests.trainers.runs import Stage, same_weights

PF_PPO = ["algorithm.use_pf_ppo=True", "algorithm.pf_ppo.reweight_method=max_min"]


def numbered(scores: list[float], **columns: Any) -> Batch:
    batch = random_batch(len(scores), seed=0)
    return batch.with_rows(place=torch.arange(len(scores)), score=torch.tensor(scores), **columns)


def counts(batch: Batch, method: str, power: float = 2.0, steps: int = 400) -> torch.Tensor:
    """How often each trajectory is drawn, over many steps, as a share."""
    total = torch.zeros(len(batch))
    for step in range(steps):
        drawn, _ = redraw(batch, PfPpo(reweight_method=method, weight_pow=power), seed=1, step=step)  # type: ignore[arg-type]
        assert len(drawn) == len(batch)
        total += torch.bincount(drawn["place"], minlength=len(batch))
    return total / total.sum()


@pytest.mark.parametrize(
    ("method", "weights"),
    [("pow", [0.0, 1.0, 4.0, 9.0]), ("max_min", [1.0, 0.0, 0.0, 1.0]), ("max_random", [0.1, 0.1, 0.1, 0.4])],
)
def test_trajectories_are_drawn_in_proportion_to_their_weights(method: str, weights: list[float]) -> None:
    expected = torch.tensor(weights) / sum(weights)
    torch.testing.assert_close(counts(numbered([0.0, 1.0, 2.0, 3.0]), method), expected, rtol=0, atol=0.04)


def test_the_penalty_counts_and_what_is_not_scored_is_never_drawn() -> None:
    batch = numbered([3.0, 1.0, 9.0, 1.0], scored=torch.tensor([True, True, False, True]))
    batch = batch.with_rows(penalty=torch.tensor([-3.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(counts(batch, "pow"), torch.tensor([0.0, 0.5, 0.0, 0.5]), rtol=0, atol=0.04)


def test_the_draw_is_a_function_of_seed_and_step() -> None:
    batch = numbered([float(i) for i in range(8)])
    places = [redraw(batch, PfPpo(), seed=seed, step=step)[0]["place"].tolist()
              for seed, step in [(0, 0), (0, 0), (0, 1), (1, 0)]]  # fmt: skip
    assert places[0] == places[1] and places[0] != places[2] and places[0] != places[3]


def test_a_run_updates_on_the_best_and_the_worst_with_the_advantages_of_the_whole_step(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []
    update = ActorWorker.update
    monkeypatch.setattr(
        ActorWorker, "update", lambda self, batch, **more: (seen.append(batch), update(self, batch, **more))[1]
    )
    one = "trainer.total_training_steps=1"
    plain = stage.run_ppo("plain", one)
    whole, seen[:] = Batch.concat(seen), []
    run = stage.run_ppo("run", one, *PF_PPO)
    drawn = Batch.concat(seen)
    extremes = {float(whole["score"].max()), float(whole["score"].min())}
    assert len(drawn) == len(whole) and set(drawn["score"].tolist()) == extremes
    advantage = {(row["uid"][0], tuple(row["input_ids"].tolist())): float(row["advantages"][-1])
                 for row in (whole.slice(i, i + 1) for i in range(len(whole)))}  # fmt: skip
    for row in (drawn.slice(i, i + 1) for i in range(len(drawn))):
        assert advantage[row["uid"][0], tuple(row["input_ids"].tolist())] == float(row["advantages"][-1])
    assert run.lines()[0]["critic/score/mean"] == plain.lines()[0]["critic/score/mean"]
    assert 0 < run.lines()[0]["pf_ppo/distinct_share"] < 1
    assert not same_weights(plain.weights(1), run.weights(1))
    assert same_weights(run.weights(1), stage.run_ppo("again", one, *PF_PPO).weights(1))
