"""From prompts to scored trajectories, with a rollout that answers in an order of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hone.agents import Trajectory
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rewards import RewardManager, default_compute_score
from hone.rollout.interface import Sampling
from hone.trainers.sampling import Sampler, trajectory_seed
from hone.workers.rollout import RolloutTask
from tests.rewards import functions


class Backwards:
    """A rollout group that finishes the last task first; an answer's token is its task's index."""

    size = 1
    tasks: Sequence[RolloutTask] = ()

    def stream(self, method: str, items: Sequence[RolloutTask], **arguments: Any) -> Iterator[tuple[int, Trajectory]]:
        self.tasks = items
        for task in reversed(items):
            trajectory = Trajectory(task.sample.prompt_ids, [task.index], [1], [0.0], [0], "stop", text=str(task.index))
            yield task.index, trajectory


class Words:
    def decode(self, ids: list[int], **options: Any) -> str:
        return " ".join(map(str, ids))

    def batch_decode(self, rows: list[list[int]]) -> list[str]:
        return [self.decode(row) for row in rows]


def prompts(*uids: str, source: str = "numbers") -> list[Sample]:
    return [Sample(i, [10 + i], [], source, f"truth {uid}", {}, None, uid) for i, uid in enumerate(uids)]


def sample(score: Any, samples: list[Sample], seed: tuple[int | str, ...] = (0, "train", 0)) -> tuple[Any, Backwards]:
    rollout = Backwards()
    sampler = Sampler(rollout, RewardManager(score))  # type: ignore[arg-type]
    return sampler(samples, n=2, sampling=Sampling(max_tokens=4), seed=seed), rollout


def test_a_seed_depends_on_each_of_its_parts_and_on_nothing_else() -> None:
    parts: tuple[int | str, ...] = (1, "train", 2, "7", 0)
    changed = [
        (2, *parts[1:]),
        (1, "val", *parts[2:]),
        (1, "train", 3, "7", 0),
        (1, "train", 2, "8", 0),
        (*parts[:4], 1),
    ]
    seeds = [trajectory_seed(*p) for p in (parts, *changed)]
    assert len(set(seeds)) == len(seeds)
    assert trajectory_seed(*parts) == seeds[0] == 3028942227924957452
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_trajectories_and_rewards_stand_in_the_order_of_the_prompts_whatever_finishes_first() -> None:
    sampled, _ = sample(functions.number, prompts("a", "b", "c"))
    assert [t.response_ids for t in sampled.trajectories] == [[i] for i in range(6)]
    assert [s.uid for s in sampled.samples] == ["a", "a", "b", "b", "c", "c"]
    assert [r.score for r in sampled.rewards()] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    line = sampled.lines(Words(), sampled.rewards())[3]
    assert line == {"input": "11", "output": "3", "gts": "truth b", "score": 3.0}


def test_draws_belong_to_a_prompt_and_not_to_its_place_in_the_batch() -> None:
    seeds = {}
    for order in (("a", "b"), ("b", "a")):
        _, rollout = sample(functions.number, prompts(*order))
        seeds[order] = {(t.sample.uid, t.index % 2): t.sampling.seed for t in rollout.tasks}
    assert seeds["a", "b"] == seeds["b", "a"]
    assert len(set(seeds["a", "b"].values())) == 4
    _, later = sample(functions.number, prompts("a", "b"), seed=(0, "train", 1))
    assert not {t.sampling.seed for t in later.tasks} & set(seeds["a", "b"].values())


def test_a_mistake_in_the_set_up_of_the_reward_is_raised_and_a_fault_of_the_function_is_counted() -> None:
    sampled, _ = sample(default_compute_score, prompts("a", source="unheard-of"))
    with pytest.raises(UserError, match="unheard-of"):
        sampled.rewards()
    sampled, _ = sample(functions.raising, prompts("a"))
    assert [r.score for r in sampled.rewards()] == [0.0, 0.0]
    sampled, _ = sample(functions.nothing, prompts("a"))
    assert [r.score for r in sampled.rewards()] == [None, None]
