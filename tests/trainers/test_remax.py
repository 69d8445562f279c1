"""ReMax: every prompt is also answered greedily, and that answer's reward is the baseline."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hone.batch import Batch
from tests.trainers.runs import ROLLOUT, Stage

ALONE = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return None if len(solution_str) % 2 else 1.0
"""


def score(text: str) -> float:
    return sum(map(ord, text)) % 7 / 7


def by_prompt(lines: list[dict[str, Any]], name: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in lines:
        found.setdefault(line["input"], []).append(line[name])
    return found


def test_advantages_are_rewards_minus_that_of_the_greedy_answer(stage: Stage, updates: list[Batch]) -> None:
    one = ["trainer.total_training_steps=1", f"trainer.rollout_data_dir={stage.directory}/dump"]
    greedy = stage.run_ppo("greedy", *one, f"{ROLLOUT}.top_k=1")  # the most likely token, by another way
    answers = by_prompt(greedy.lines("../dump/1.jsonl"), "output")
    updates.clear()
    run = stage.run_ppo("run", *one, estimator="remax")
    lines = run.lines("../dump/1.jsonl")
    assert len(lines) == sum(len(piece) for piece in updates) == 8  # the greedy answers are not trained on
    expected = [line["score"] - score(answers[line["input"]][0]) for line in lines]
    found = []
    for piece in updates:
        for row in range(len(piece)):
            part = piece.slice(row, row + 1)
            values = part["advantages"][part["response_mask"].bool()]
            assert bool((values == values[0]).all())
            found.append(float(values[0]))
    assert found == pytest.approx(expected, abs=1e-6) and any(found)
    baselines = [score(texts[0]) for texts in answers.values()]
    assert run.lines()[0]["critic/greedy_reward/mean"] == pytest.approx(sum(baselines) / 4)


def test_without_a_score_of_the_greedy_answer_nothing_is_learned_from_its_prompt(
    stage: Stage, updates: list[Batch]
) -> None:
    path = stage.directory / "alone.py"
    path.write_text(ALONE)
    stage.run_ppo("run", f"custom_reward_function.path={path}", estimator="remax")
    rows = [piece.slice(i, i + 1) for piece in updates for i in range(len(piece))]
    unscored = [row for row in rows if not row["scored"][0]]
    assert unscored and all(not row["advantages"].any() for row in unscored)
    assert all(torch.isfinite(row["advantages"]).all() for row in rows)
