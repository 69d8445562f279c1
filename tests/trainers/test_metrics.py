"""A step's numbers against plain loops over its trajectories."""

from __future__ import annotations

import math
from statistics import mean, pvariance

import pytest
import torch

from hone.batch import Batch
from hone.rewards import Reward
from hone.trainers.metrics import batch_metrics, reward_metrics, speed_metrics
from hone.trainers.validation_metrics import validation_metrics
from tests.trainers.ragged import random_batch


def finished(seed: int) -> Batch:
    """A batch as it is after a step."""
    batch = random_batch(6, seed=seed)
    draw = torch.Generator().manual_seed(seed + 100)
    names = ("advantages", "returns", "values", "rewards")
    return batch.with_tokens(**{name: torch.randn(batch.num_tokens, generator=draw) for name in names})


def spread(values: list[float]) -> list[float]:
    return [mean(values), max(values), min(values)]


def found(metrics: dict[str, float], name: str) -> list[float]:
    return [metrics[f"{name}/{kind}"] for kind in ("mean", "max", "min")]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_spreads_count_trainable_tokens_and_scored_trajectories_only(seed: int) -> None:
    batch = finished(seed).with_rows(scored=torch.tensor([True, False, True, True, True, False]))
    metrics = batch_metrics(batch, max_response_length=6)
    tokens = [t for t in range(batch.num_tokens) if batch["response_mask"][t]]
    for name in ("advantages", "returns", "values"):
        expected = spread([float(batch[name][t]) for t in tokens])
        assert found(metrics, f"critic/{name}") == pytest.approx(expected, rel=1e-5)
    rows = [row for row in range(6) if batch["scored"][row]]
    assert found(metrics, "critic/score") == pytest.approx(spread([float(batch["score"][r]) for r in rows]), rel=1e-5)
    sums = [sum(float(batch["rewards"][t]) for t in tokens if batch.segment_ids[t] == row) for row in rows]
    assert found(metrics, "critic/rewards") == pytest.approx(spread(sums), rel=1e-4, abs=1e-6)
    lengths = [float(n - p) for n, p in zip(batch.lengths, batch["prompt_length"])]
    assert found(metrics, "response_length") == pytest.approx(spread(lengths))
    assert metrics["response_length/clip_ratio"] == pytest.approx(mean(n >= 6 for n in lengths))


@pytest.mark.parametrize("seed", [0, 1])
def test_explained_variance_is_one_minus_the_unexplained_share(seed: int) -> None:
    batch = finished(seed)
    tokens = [t for t in range(batch.num_tokens) if batch["response_mask"][t]]
    returns = [float(batch["returns"][t]) for t in tokens]
    errors = [float(batch["returns"][t] - batch["values"][t]) for t in tokens]
    metrics = batch_metrics(batch, 6)
    assert metrics["critic/vf_explained_var"] == pytest.approx(1 - pvariance(errors) / pvariance(returns), rel=1e-4)
    perfect = batch_metrics(batch.with_tokens(values=batch["returns"] + 3), 6)
    assert perfect["critic/vf_explained_var"] == pytest.approx(1.0, abs=1e-5)


def test_a_step_without_trainable_tokens_or_scores_has_finite_metrics() -> None:
    batch = finished(0)
    batch = batch.with_tokens(response_mask=torch.zeros(batch.num_tokens, dtype=torch.int64))
    metrics = batch_metrics(batch.with_rows(scored=torch.zeros(6, dtype=torch.bool)), 6)
    assert all(math.isfinite(value) for value in metrics.values())
    assert not any(name.startswith(("critic/score", "critic/advantages")) for name in metrics)


def test_nan_under_the_mask_reaches_no_metric() -> None:
    batch = finished(1)
    mask = batch["response_mask"].bool()
    names = ("advantages", "returns", "values", "rewards")
    spoiled = batch.with_tokens(**{name: torch.where(mask, batch[name], torch.nan) for name in names})
    assert batch_metrics(spoiled, 6) == batch_metrics(batch, 6)


def test_speeds_are_tokens_over_seconds() -> None:
    batch = finished(0)
    tokens, response = batch.num_tokens, int(batch["response_mask"].sum())
    metrics = speed_metrics({"step": 2.0, "gen": 1.0, "update_actor": 0.5}, batch, ranks=4)
    assert metrics["perf/throughput"] == tokens / 8
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(1000 / response)
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(500 / tokens)
    assert metrics["global_seqlen/max"] == float(batch.lengths.max())


def test_failures_are_counted_and_numbers_beside_the_score_are_averaged_where_they_are() -> None:
    rewards = [
        Reward(1.0, {"format": 1.0, "pred": "4"}),
        Reward(0.0, {"format": 0.0}),
        Reward(0.0, error="ValueError: x"),
        Reward(0.0, error="no score within 1 s", timeout=True),
    ]
    assert reward_metrics(rewards) == {"reward/errors": 1.0, "reward/timeouts": 1.0, "reward/format/mean": 0.5}


def rewards(*answers: tuple[float | None, float, str]) -> list[Reward]:
    return [Reward(score, {"acc": acc, "pred": pred}) for score, acc, pred in answers]


def test_validation_takes_means_best_and_majority_by_prompt_and_source() -> None:
    scored = rewards(
        (1.0, 1.0, "4"), (0.0, 0.0, "5"), (0.0, 0.0, "5"),  # the majority is wrong
        (1.0, 1.0, "7"), (1.0, 1.0, "7"), (0.0, 0.0, "8"),
        (0.5, 0.0, "1"), (0.5, 0.0, "2"), (0.5, 0.0, "3"),  # a source of its own
    )  # fmt: skip
    sources = ["math"] * 6 + ["code"] * 3
    metrics = validation_metrics(sources, ["a"] * 3 + ["b"] * 3 + ["c"] * 3, scored)
    assert metrics["val-core/math/acc/mean@3"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert metrics["val-core/math/acc/best@3/mean"] == 1.0
    assert metrics["val-core/math/acc/maj@3/mean"] == 0.5
    assert metrics["val-aux/math/reward/mean@3"] == pytest.approx(0.5)
    assert metrics["val-aux/code/reward/mean@3"] == pytest.approx(0.5)
    assert metrics["val-core/code/acc/best@3/mean"] == 0.0
    assert not any(name.endswith("unscored") for name in metrics)


def test_one_response_has_a_mean_alone_and_the_reward_is_the_core_variable_without_acc() -> None:
    metrics = validation_metrics(["math", "math"], ["a", "b"], [Reward(1.0), Reward(0.0, error="ValueError: x")])
    assert metrics == {"val-core/math/reward/mean@1": 0.5}


def test_what_is_not_scored_leaves_mean_best_and_majority_and_is_counted() -> None:
    scored = rewards(
        (None, 1.0, "5"), (0.0, 0.0, "5"), (1.0, 1.0, "4"), (-1.0, 0.0, "3"),  # without the first, no prediction leads
        (-1.0, 0.0, "7"), (None, 0.0, "8"), (None, 0.0, "8"), (-2.0, 0.0, "7"),
        (None, 1.0, "1"), (None, 1.0, "1"), (None, 1.0, "1"), (None, 1.0, "1"),  # a prompt without any
    )  # fmt: skip
    uids = [uid for uid in "abc" for _ in range(4)]
    metrics = validation_metrics(["math"] * 12, uids, scored)
    assert metrics["val-core/math/acc/mean@4"] == pytest.approx((1 / 3 + 0) / 2)
    assert metrics["val-aux/math/reward/mean@4"] == pytest.approx((0.0 - 1.5) / 2)
    assert metrics["val-aux/math/reward/best@4/mean"] == pytest.approx((1.0 - 1.0) / 2)
    assert metrics["val-aux/math/reward/maj@4/mean"] == pytest.approx((0.0 - 1.0) / 2)
    assert metrics["val-aux/math/unscored"] == 7.0


def test_a_source_without_any_score_has_its_count_alone() -> None:
    found = validation_metrics(["math", "code"], ["a", "b"], [Reward(None, {"acc": 1.0}), Reward(0.5)])
    assert found == {"val-aux/math/unscored": 1.0, "val-core/code/reward/mean@1": 0.5}


def test_an_unscored_response_without_a_prediction_does_not_hide_the_majority() -> None:
    scored = [Reward(None), *rewards((0.5, 0.5, "1"), (0.5, 0.5, "1"))]
    assert validation_metrics(["math"] * 3, ["a"] * 3, scored)["val-core/math/acc/maj@3/mean"] == 0.5
