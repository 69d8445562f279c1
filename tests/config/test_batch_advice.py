"""What is advised for batch sizes that do not fit: whoever follows it has no such problem left."""

from __future__ import annotations

import random
import re

import pytest

from hone.config.check_batches import ACTOR_MINI, BATCH, CRITIC_MINI, ROLLOUT, batch_problems
from hone.config.presets import PRESETS
from hone.config.problems import Problem
from hone.config.schema import PPOConfig
from hone.config.tree import get, put

KEYS = (BATCH, ACTOR_MINI, CRITIC_MINI, f"{ROLLOUT}.n", "trainer.n_gpus_per_node")


def config_of(values: dict[str, int], *, critic: bool) -> PPOConfig:
    tree = PRESETS["ppo_trainer"].resolved()
    for key, value in values.items():
        put(tree, key, value)
    put(tree, "algorithm.adv_estimator", "gae" if critic else "grpo")
    return PPOConfig.model_validate(tree)


def settings_in(fix: str) -> list[dict[str, int]]:
    """Each of the ways to mend it that a text offers: `set a=1 or 2, or b=3 and c=4`."""
    ways: list[dict[str, int]] = []
    for way in fix.removeprefix("set ").split(", or "):
        pairs = re.findall(r"([\w.]+)=(\d+(?: or \d+)*)", way)
        assert pairs and "=".join(pairs[0]) in way, fix
        if len(pairs) == 1:
            ways += [{pairs[0][0]: int(value)} for value in pairs[0][1].split(" or ")]
        else:
            ways.append({key: int(value) for key, value in pairs})
    return ways


def bad_arithmetic(seed: int) -> tuple[dict[str, int], bool]:
    draw = random.Random(seed)
    sizes = [draw.choice([1, 2, 3, 4, 6, 7, 8, 12, 16, 30, 64, 100, 128, 1000]) for _ in range(3)]
    n, ranks = draw.choice([1, 1, 2, 3, 8]), draw.choice([1, 2, 3, 8, 16, 64, 100])
    critic = draw.random() < 0.5
    return dict(zip(KEYS, [*sizes, n, ranks], strict=True)), critic


@pytest.mark.parametrize("seeds", [range(start, start + 30) for start in (0, 30, 60)], ids=str)
def test_what_is_advised_passes_the_check(seeds: range) -> None:
    tried = 0
    for seed in seeds:
        values, critic = bad_arithmetic(seed)
        config = config_of(values, critic=critic)
        found: list[Problem] = list(batch_problems(config))
        for problem in found:
            for way in settings_in(problem.fix):
                tried += 1
                left = {p.key for p in batch_problems(config_of({**values, **way}, critic=critic))}
                others = {p.key for p in found} - {problem.key}
                assert problem.key not in left and left <= others, (values, problem.fix, way, left)
    assert tried > 15


def test_the_settings_of_a_text_are_read() -> None:
    assert settings_in("set a.b=1 or 2, or c=3 and d=4") == [{"a.b": 1}, {"a.b": 2}, {"c": 3, "d": 4}]


def test_a_mini_batch_for_many_ranks_also_divides_the_batch() -> None:
    values = dict(zip(KEYS, [12, 2, 2, 1, 5], strict=True))
    (problem,) = batch_problems(config_of(values, critic=False))
    assert "2 trajectories for 5 ranks" in problem.wrong
    assert settings_in(problem.fix) == [{ACTOR_MINI: 6}, {f"{ROLLOUT}.n": 3}]
    assert get(PRESETS["ppo_trainer"].resolved(), ACTOR_MINI) != 6
