"""From what the reward function said to the number that a trajectory is judged by."""

from __future__ import annotations

import pytest
import torch

from hone.config.schema.reward import OverlongBuffer
from hone.errors import UserError
from hone.rewards import Reward
from hone.trainers.scoring import Scoring, shaped_scores
from tests.trainers.ragged import random_batch
from tests.trainers.runs import ROLLOUT, Stage, same_weights

BUFFER = "reward_model.overlong_buffer"
PENALISED = [f"{BUFFER}.enable=True", f"{BUFFER}.len=4", f"{BUFFER}.penalty_factor=2.0"]


def test_the_penalty_falls_in_a_straight_line_before_the_limit() -> None:
    scoring = Scoring(OverlongBuffer(enable=True, len=4, penalty_factor=2.0), max_response_length=8)
    found = scoring.penalties(torch.tensor([1, 4, 5, 6, 7, 8]))
    assert found.tolist() == [0.0, 0.0, -0.5, -1.0, -1.5, -2.0]
    assert Scoring(OverlongBuffer(), 8).penalties(torch.tensor([1, 8])).tolist() == [0.0, 0.0]


def test_the_score_stays_raw_and_the_penalty_stands_beside_it() -> None:
    batch = random_batch(4, seed=0)
    scoring = Scoring(OverlongBuffer(enable=True, len=6, penalty_factor=1.0), max_response_length=6)
    rewards = [Reward(1.0), Reward(None), Reward(0.5), Reward(0.0)]
    found, metrics = scoring.add_scores(batch, rewards)
    lengths = (batch.lengths - batch["prompt_length"]).tolist()
    assert found["score"].tolist() == [1.0, 0.0, 0.5, 0.0] and found["scored"].tolist() == [True, False, True, True]
    expected = torch.tensor([s - n / 6 for s, n in zip([1.0, 0.0, 0.5, 0.0], lengths)])
    torch.testing.assert_close(shaped_scores(found), expected)
    assert metrics["overlong/penalty/mean"] == pytest.approx(-sum(lengths) / 4 / 6)


def test_answers_without_any_score_are_a_warning_and_an_error_when_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    scoring = Scoring(OverlongBuffer(), 8)
    for _ in range(2):
        scoring.check([Reward(None), Reward(None)])
    assert [m for m in caplog.messages if "None (not scored) for all 2 answers" in m] == caplog.messages != []
    scoring.check([Reward(None), Reward(0.0)])
    scoring.check([Reward(None)])
    scoring.check([Reward(None)])
    with pytest.raises(UserError, match="for all 1 answers, 3 times in a row"):
        scoring.check([Reward(None)])


def test_a_run_trains_on_the_sum_and_logs_both(stage: Stage) -> None:
    full_length = [f"{ROLLOUT}.ignore_eos=True"]  # every response has 8 tokens, so every penalty is -2
    plain = stage.run_ppo("plain", *full_length, estimator="reward")
    run = stage.run_ppo("run", *full_length, *PENALISED, estimator="reward")
    before, after = plain.lines()[0], run.lines()[0]
    assert after["overlong/penalty/mean"] == -2.0
    assert after["critic/score/mean"] == before["critic/score/mean"] == before["critic/rewards/mean"]
    assert after["critic/rewards/mean"] == pytest.approx(before["critic/rewards/mean"] - 2.0)
    assert after["critic/advantages/mean"] == pytest.approx(before["critic/advantages/mean"] - 2.0)
    assert not same_weights(plain.weights(), run.weights())
