"""clip_cov and kl_cov pick their tokens among those of a whole mini-batch, once, before its update."""

from __future__ import annotations

import pytest
import torch

from hone.algorithms import PolicyLossParams
from hone.batch import Batch
from hone.trainers.token_selection import token_selector
from hone.trainers.updates import UpdatePlan
from tests.trainers.ragged import random_batch
from tests.trainers.runs import ACTOR, Stage, difference, same_weights

LOSS = f"{ACTOR}.policy_loss"
SGD = [f"{ACTOR}.optim.{change}" for change in ("optimizer=SGD", "lr=0.1", "weight_decay=0")]


def advantaged(trajectories: int, seed: int) -> Batch:
    batch = random_batch(trajectories, seed=seed)
    advantages = torch.randn(batch.num_tokens, generator=torch.Generator().manual_seed(seed))
    mask = batch["response_mask"].bool()
    spoiled = torch.where(mask, advantages, torch.nan)  # what stands under the mask must not matter
    return batch.with_tokens(loss_mask=mask, advantages=spoiled)


def pieces(batch: Batch, loss_mode: str, *, step: int = 0, **params: float) -> list[Batch]:
    selector = token_selector(loss_mode, PolicyLossParams(**params))
    plan = UpdatePlan(6, epochs=1, loss_agg_mode="token-mean", scale_length=8, seed=3, selector=selector)
    return list(plan.mini_batches(batch, step))


def covariances(piece: Batch) -> dict[int, float]:
    """Of each trainable token, by a loop."""
    places = [t for t in range(piece.num_tokens) if piece["loss_mask"][t]]
    logprobs, advantages = ([float(piece[name][t]) for t in places] for name in ("old_logprobs", "advantages"))
    mean_logprob, mean_advantage = sum(logprobs) / len(places), sum(advantages) / len(places)
    return {t: (p - mean_logprob) * (a - mean_advantage) for t, p, a in zip(places, logprobs, advantages)}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kl_cov_picks_the_share_of_highest_covariance_of_each_mini_batch(seed: int) -> None:
    for piece in pieces(advantaged(12, seed), "kl_cov", kl_cov_ratio=0.3):
        covariance = covariances(piece)
        ordered = sorted(covariance, key=lambda t: -covariance[t])
        expected = set(ordered[: int(0.3 * len(ordered))])
        assert expected and set(piece["selection"].nonzero().flatten().tolist()) == expected


def test_clip_cov_picks_at_random_between_its_bounds_and_again_the_same_at_the_same_step() -> None:
    batch, bounds = advantaged(12, 0), {"clip_cov_ratio": 0.1, "clip_cov_lb": -0.5, "clip_cov_ub": 0.5}
    picked = {}
    for name, step in {"first": 0, "again": 0, "later": 1}.items():
        found = pieces(batch, "clip_cov", step=step, **bounds)
        for piece in found:
            covariance = covariances(piece)
            chosen = piece["selection"].nonzero().flatten().tolist()
            assert len(chosen) == max(1, int(0.1 * len(covariance)))
            assert all(-0.5 < covariance[t] < 0.5 for t in chosen)
        picked[name] = torch.cat([piece["selection"] for piece in found])
    assert torch.equal(picked["first"], picked["again"]) and not torch.equal(picked["first"], picked["later"])


def test_other_losses_carry_no_selection() -> None:
    assert token_selector("vanilla", PolicyLossParams()) is None
    assert all("selection" not in piece for piece in pieces(advantaged(6, 0), "vanilla"))


def test_tokens_that_clip_cov_picks_teach_nothing(stage: Stage) -> None:
    wide = [*SGD, f"{LOSS}.loss_mode=clip_cov", f"{LOSS}.clip_cov_lb=-1e9", f"{LOSS}.clip_cov_ub=1e9"]
    begun = stage.run_ppo("begun", *SGD, f"{ACTOR}.optim.lr=0")
    every = stage.run_ppo("every", *wide, f"{LOSS}.clip_cov_ratio=1.0")
    assert same_weights(begun.weights(), every.weights())
    assert every.lines()[0]["actor/pg_clipfrac"] == 1.0
    some = stage.run_ppo("some", *wide, f"{LOSS}.clip_cov_ratio=0.5")
    assert some.lines()[0]["actor/pg_clipfrac"] == pytest.approx(0.5, abs=0.05)
    assert difference(begun.weights(), some.weights()) > 0


def test_kl_cov_holds_back_the_tokens_that_it_picks(stage: Stage) -> None:
    twice = [
        *SGD,
        f"{ACTOR}.ppo_epochs=2",
        "trainer.total_training_steps=1",
        f"{LOSS}.loss_mode=kl_cov",
        f"{LOSS}.kl_cov_ratio=1.0",
    ]
    free = stage.run_ppo("free", *twice, f"{LOSS}.ppo_kl_coef=0")
    held = stage.run_ppo("held", *twice, f"{LOSS}.ppo_kl_coef=1")
    one = stage.run_ppo("one", *twice, f"{LOSS}.ppo_kl_coef=1", f"{LOSS}.kl_cov_ratio=0")  # at least one token
    assert held.lines()[0]["actor/ppo_kl"] < free.lines()[0]["actor/ppo_kl"]
    assert 0 < difference(free.weights(1), one.weights(1)) < difference(free.weights(1), held.weights(1))


def test_later_mini_batches_pick_by_the_policy_of_their_moment() -> None:
    batch, asked = advantaged(12, 0), []

    def moved(piece: Batch) -> torch.Tensor:
        asked.append(piece)
        return -piece["old_logprobs"]

    selector = token_selector("kl_cov", PolicyLossParams(kl_cov_ratio=0.3))
    plan = UpdatePlan(6, epochs=1, loss_agg_mode="token-mean", scale_length=8, seed=3, selector=selector)
    first, second = plan.mini_batches(batch, 0, moved)
    stale = pieces(batch, "kl_cov", kl_cov_ratio=0.3)
    assert len(asked) == 1 and torch.equal(asked[0].offsets, second.offsets)
    assert torch.equal(first["selection"], stale[0]["selection"])
    expected = selector(second.with_tokens(old_logprobs=-second["old_logprobs"]), torch.Generator())
    assert torch.equal(second["selection"], expected) and not torch.equal(expected, stale[1]["selection"])
    assert torch.equal(second["old_logprobs"][second["loss_mask"]], stale[1]["old_logprobs"][second["loss_mask"]])
