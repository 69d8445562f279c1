"""Steps that are counted by arithmetic are those that a run finds one by one."""

from __future__ import annotations

import itertools

import pytest

from hone.trainers.checkpoints import due
from hone.trainers.planning.due import DueSteps
from hone.trainers.sft import saves

STEPS = (0, 1, 2, 5, 6, 12, 13)


@pytest.mark.parametrize("every", [-1, 0, 1, 2, 5, 6, 20])
@pytest.mark.parametrize("first", [False, True])
def test_they_are_those_that_a_run_finds_one_by_one(every: int, first: bool) -> None:
    for (done, total), last in itertools.product(itertools.product(STEPS, STEPS), (False, True)):
        rule = saves if last else due
        found = [step for step in range(done + 1, total + 1) if rule(step, every, last=step == total)]
        expected = [done] * first + found
        steps = DueSteps(done, total, every, last=last, first=first)
        assert (list(steps), len(steps), bool(steps)) == (expected, len(expected), bool(expected))
        assert not expected or steps.newest == expected[-1]


def test_billions_are_counted_at_once() -> None:
    steps = DueSteps(0, 10**15 + 1, 10, first=True)
    assert (len(steps), steps.newest) == (10**14 + 2, 10**15 + 1)
    assert list(itertools.islice(steps, 3)) == [0, 10, 20]
