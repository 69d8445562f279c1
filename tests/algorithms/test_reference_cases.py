"""Every reference case, with the numbers of an independent implementation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hone.algorithms import (
    AdaptiveKL,
    AdvantageInputs,
    PolicyLossInputs,
    PolicyLossParams,
    get_estimator,
    get_policy_loss,
    importance_weights,
    kl_estimate,
    loss_weights,
    place_rewards,
    value_loss,
)

FILE = json.loads((Path(__file__).parents[1] / "cases" / "reference_cases_0.json").read_text())
INPUTS = FILE["inputs"]
ROWS, LENGTH = len(INPUTS["uid"]), len(INPUTS["m"][0])
OFFSETS = torch.arange(ROWS + 1) * LENGTH
SEGMENTS = torch.arange(ROWS)[:, None].expand(ROWS, LENGTH)


def cases(kind: str) -> list[Any]:
    chosen = [case for case in FILE["cases"] if case["kind"] == kind]
    return [pytest.param(case, id=f"{case['name']}-{i}") for i, case in enumerate(chosen)]


def matrix(name: str) -> Tensor:
    return torch.tensor(INPUTS[name])


def mask_of(case: dict[str, Any]) -> Tensor:
    return matrix(case["params"]["mask"]).bool()


def close(actual: Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual.detach().float(), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def weights_of(mask: Tensor, mode: str) -> Tensor:
    return loss_weights(mask.flatten(), OFFSETS, mode, scale_length=LENGTH).view_as(mask)


def reward_matrix(name: str) -> Tensor:
    if name in INPUTS:
        return matrix(name)
    assert name == "tok + 0.001*row where tok != 0"
    rows = torch.arange(ROWS)[:, None]
    return torch.where(matrix("tok") != 0, matrix("tok") + 0.001 * rows, 0.0)


@pytest.mark.parametrize("case", cases("advantage"))
def test_advantages_and_returns(case: dict[str, Any]) -> None:
    p = case["params"]
    x = AdvantageInputs(
        token_rewards=reward_matrix(p["rewards"]),
        mask=mask_of(case),
        group_ids=torch.tensor([int(uid[1:]) for uid in INPUTS["uid"]]),
        values=matrix("values"),
        greedy_rewards=torch.full((ROWS,), p["greedy_reward"]) if "greedy_reward" in p else None,
        gamma=p.get("gamma", 1.0),
        lam=p.get("lam", 1.0),
        norm_by_std=p.get("norm_by_std", True),
    )
    advantages, returns = get_estimator(case["name"])(x)
    close(advantages, case["expected"]["advantages"])
    close(returns, case["expected"].get("returns", case["expected"]["advantages"]))


@pytest.mark.parametrize("case", cases("aggregate"))
def test_aggregation(case: dict[str, Any]) -> None:
    close((weights_of(mask_of(case), case["name"]) * matrix("new")).sum(), case["expected"]["loss"])


@pytest.mark.parametrize("case", cases("kl"))
def test_kl_value_and_gradient(case: dict[str, Any]) -> None:
    new = matrix("new").requires_grad_()
    value = kl_estimate(new, matrix("ref"), case["name"]) * mask_of(case)
    close(value, case["expected"]["value"])
    close(torch.autograd.grad(value.sum(), new)[0], case["expected"]["grad"])


@pytest.mark.parametrize("case", cases("policy_loss"))
def test_policy_loss_gradient_and_metrics(case: dict[str, Any]) -> None:
    """The case of geo_mean averages its loss over trajectories although it names token-mean: a mean over trajectories
    is what the paper's objective is, and is spelled seq-mean-token-mean here."""
    p, mask = case["params"], mask_of(case)
    new = matrix("new").requires_grad_()
    params = {key: value for key, value in p.items() if key not in ("mask", "loss_agg_mode")}
    x = PolicyLossInputs(new, matrix("old"), matrix("adv"), mask, SEGMENTS)
    loss, metrics = get_policy_loss(case["name"])(x, PolicyLossParams(**params))
    mode = "seq-mean-token-mean" if case["name"] == "geo_mean" else p["loss_agg_mode"]
    total = (weights_of(mask, mode) * loss).sum()
    close(total, case["expected"]["loss"])
    close(torch.autograd.grad(total, new)[0], case["expected"]["grad"])
    for name, value in case["expected"]["metrics"].items():
        close((weights_of(mask, "token-mean") * metrics[name]).sum(), value)


@pytest.mark.parametrize("case", cases("value_loss"))
def test_value_loss_gradient_and_clip_fraction(case: dict[str, Any]) -> None:
    mask, values = mask_of(case), matrix("values").requires_grad_()
    old_values = matrix("values") + 0.3 * matrix("adv")
    loss, clipped = value_loss(values, old_values, matrix("dense"), mask, case["params"]["cliprange_value"])
    weights = weights_of(mask, "token-mean")
    total = (weights * loss).sum()
    close(total, case["expected"]["loss"])
    close(torch.autograd.grad(total, values)[0], case["expected"]["grad"])
    close((weights * clipped).sum(), case["expected"]["clipfrac"])


@pytest.mark.parametrize("case", cases("importance"))
def test_importance_weights(case: dict[str, Any]) -> None:
    p = case["params"]
    weights, keep = importance_weights(
        matrix("old"),
        matrix("roll"),
        mask_of(case),
        SEGMENTS,
        level=case["name"],
        mode=p["mode"],
        threshold=p["threshold"],
        threshold_lower=p.get("threshold_lower"),
        veto_threshold=None,
    )
    close(weights, case["expected"]["weights"])
    assert torch.equal(keep, torch.tensor(case["expected"]["weights"]) != 0)


@pytest.mark.parametrize("case", cases("kl_controller"))
def test_kl_coefficient_after_each_update(case: dict[str, Any]) -> None:
    p = case["params"]
    controller = AdaptiveKL(p["kl_coef"], target=p["target_kl"], horizon=p["horizon"])
    for (kl, trajectories), expected in zip(p["updates"], case["expected"]["coef"], strict=True):
        controller.update(kl, trajectories)
        assert controller.value == pytest.approx(expected, abs=1e-7)


def test_outcome_rewards_land_on_the_last_trainable_token() -> None:
    assert torch.equal(place_rewards(matrix("R"), matrix("mh").bool()), matrix("tok"))
