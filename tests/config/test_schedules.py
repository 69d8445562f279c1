"""A warm-up must leave the steps that the schedule was asked for."""

from __future__ import annotations

import pytest

from hone.config import load
from hone.config.schedules import schedule_problems
from hone.training.schedule import Schedule

OPTIM = "actor_rollout_ref.actor.optim"


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 2, 9, 10, 11])
@pytest.mark.parametrize("total", [1, 2, 10])
def test_a_schedule_is_refused_where_it_never_comes_to_its_value(
    kind: str, warmup: int, total: int, runnable: dict[str, list[str]]
) -> None:
    """Against the schedule itself: its last factor is min_ratio, or its highest is 1 where it does not fall."""
    argv = [*runnable["ppo"], "algorithm.adv_estimator=grpo", f"{OPTIM}.lr_scheduler_type={kind}",
            f"{OPTIM}.lr_warmup_steps={warmup}"]  # fmt: skip
    found = [problem.key for problem in schedule_problems(load("ppo", argv).config, total)]
    schedule = Schedule(kind, total_steps=total, warmup_steps=warmup, min_ratio=0.25)
    factors = [schedule.factor(step) for step in range(total)]
    reached = max(factors) == 1 if kind == "constant" else factors[-1] == pytest.approx(0.25)
    if warmup and not reached:
        assert found == [f"{OPTIM}.lr_warmup_steps"]
    elif reached:
        assert found == []


def test_what_is_advised_fits(runnable: dict[str, list[str]]) -> None:
    argv = [*runnable["sft"], "optim.lr_warmup_steps_ratio=1"]
    (problem,) = schedule_problems(load("sft", argv).config, 8)
    assert "8 steps of warm-up in a run of 8" in problem.wrong and "optim.lr_warmup_steps_ratio=0.1" in problem.fix
    assert not list(schedule_problems(load("sft", [*argv, "optim.lr_warmup_steps_ratio=0.1"]).config, 8))
