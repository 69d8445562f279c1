"""Advantages against loops written out here, and against what may not matter: masked values, order, group names."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hone.algorithms import ADVANTAGE_ESTIMATORS, AdvantageInputs, get_estimator, place_rewards
from tests.algorithms.random_batches import ESTIMATOR_NAMES, random_advantage_inputs

seeds = st.integers(0, 10_000)
each_estimator = pytest.mark.parametrize("name", ESTIMATOR_NAMES)
GROUP_ESTIMATORS = ["grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"]


def outcome(rewards: list[float], groups: list[int], lengths: list[int] | None = None, **fields) -> AdvantageInputs:
    """Trajectories of given lengths (0: nothing trainable) with an outcome reward each."""
    lengths = lengths or [2] * len(rewards)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return AdvantageInputs(place_rewards(torch.tensor(rewards), mask), mask, torch.tensor(groups), **fields)


def per_trajectory(name: str, x: AdvantageInputs) -> list[float]:
    """The advantage of each trajectory's first token."""
    return get_estimator(name)(x)[0][:, 0].tolist()


def test_all_estimators_of_the_field_are_registered() -> None:
    assert sorted(ADVANTAGE_ESTIMATORS) == sorted(ESTIMATOR_NAMES)


def test_an_unknown_estimator_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'grop'.*grpo"):
        get_estimator("grop")


@each_estimator
@settings(max_examples=25, deadline=None)
@given(seed=seeds, junk=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
def test_values_under_the_mask_change_nothing(name: str, seed: int, junk: float) -> None:
    x = random_advantage_inputs(seed)
    assert x.values is not None
    dirty = replace(
        x,
        token_rewards=torch.where(x.mask, x.token_rewards, junk),
        values=torch.where(x.mask, x.values, junk),
    )
    for clean_out, dirty_out in zip(get_estimator(name)(x), get_estimator(name)(dirty), strict=True):
        assert torch.equal(clean_out, dirty_out)
        assert torch.equal(dirty_out[~x.mask], torch.zeros(int((~x.mask).sum())))
        assert dirty_out.dtype == torch.float32


@each_estimator
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_permuting_trajectories_permutes_the_results(name: str, seed: int) -> None:
    x = random_advantage_inputs(seed)
    order = torch.randperm(len(x.mask), generator=torch.Generator().manual_seed(seed))
    assert x.values is not None and x.greedy_rewards is not None
    shuffled = replace(
        x,
        token_rewards=x.token_rewards[order],
        mask=x.mask[order],
        group_ids=x.group_ids[order],
        values=x.values[order],
        greedy_rewards=x.greedy_rewards[order],
    )
    for plain, permuted in zip(get_estimator(name)(x), get_estimator(name)(shuffled), strict=True):
        torch.testing.assert_close(permuted, plain[order], rtol=1e-5, atol=1e-6)


@each_estimator
@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_a_tool_span_changes_nothing(name: str, seed: int) -> None:
    """Masked columns put between the tokens only spread the results out."""
    x = random_advantage_inputs(seed)
    columns = torch.tensor([0, 1, 2, 5, 6, 9])

    def spread(matrix: Tensor) -> Tensor:
        wide = torch.zeros(len(matrix), 11, dtype=matrix.dtype)
        wide[:, columns] = matrix
        return wide

    assert x.values is not None
    wide = replace(x, token_rewards=spread(x.token_rewards), mask=spread(x.mask), values=spread(x.values))
    for narrow_out, wide_out in zip(get_estimator(name)(x), get_estimator(name)(wide), strict=True):
        torch.testing.assert_close(wide_out[:, columns], narrow_out, rtol=1e-6, atol=1e-6)


@each_estimator
def test_a_step_without_trainable_tokens_gives_zeros(name: str) -> None:
    x = random_advantage_inputs(0)
    x = replace(x, mask=torch.zeros_like(x.mask))
    for out in get_estimator(name)(x):
        assert torch.equal(out, torch.zeros(x.mask.shape))


@each_estimator
def test_a_trajectory_without_a_score_gets_zero_and_leaves_its_group(name: str) -> None:
    x = random_advantage_inputs(3)
    x = replace(x, mask=torch.ones_like(x.mask))
    assert x.values is not None and x.greedy_rewards is not None
    scored = torch.tensor([True, False, True, True, True, True, False])
    missing = replace(x, scored=scored, token_rewards=torch.where(scored[:, None], x.token_rewards, math.nan))
    without = AdvantageInputs(
        x.token_rewards[scored],
        x.mask[scored],
        torch.tensor([0, 0, 0, 1, 1]),
        values=x.values[scored],
        greedy_rewards=x.greedy_rewards[scored],
        gamma=x.gamma,
        lam=x.lam,
    )
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    advantages, returns = get_estimator(name)(replace(missing, group_ids=groups))
    expected, expected_returns = get_estimator(name)(without)
    torch.testing.assert_close(advantages[scored], expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(returns[scored], expected_returns, rtol=1e-5, atol=1e-6)
    assert torch.equal(advantages[~scored], torch.zeros(2, 6))
    assert torch.equal(returns[~scored], x.values[~scored] if name == "gae" else torch.zeros(2, 6))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, gamma=st.floats(0.0, 1.0), lam=st.floats(0.0, 1.0))
def test_gae_is_the_recursion_over_trainable_tokens(seed: int, gamma: float, lam: float) -> None:
    x = replace(random_advantage_inputs(seed, rows=4, length=70), gamma=gamma, lam=lam)  # crosses the column blocks
    assert x.values is not None
    raw = torch.zeros(x.mask.shape, dtype=torch.float64)
    for row in range(4):
        advantage = value = 0.0
        for t in reversed(x.mask[row].nonzero().flatten().tolist()):
            delta = float(x.token_rewards[row, t]) + gamma * value - float(x.values[row, t])
            advantage, value = delta + gamma * lam * advantage, float(x.values[row, t])
            raw[row, t] = advantage
    trained = raw[x.mask]
    whitened = torch.zeros_like(raw)
    whitened[x.mask] = (trained - trained.mean()) / (trained.var() + 1e-8).sqrt()
    advantages, returns = get_estimator("gae")(x)
    torch.testing.assert_close(advantages, whitened.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(returns, torch.where(x.mask, raw + x.values, 0.0).float(), rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_group_estimators_are_the_formulas_of_a_loop_over_groups(seed: int) -> None:
    x = random_advantage_inputs(seed, rows=12)
    rewards = torch.where(x.mask, x.token_rewards, 0.0).double().sum(1)
    lengths = x.mask.sum(1).double()
    live = x.mask.any(1)
    expected = {name: torch.zeros(12, dtype=torch.float64) for name in ("grpo", "rloo", "opo", "grpo_passk")}
    for group in x.group_ids.unique():
        rows = ((x.group_ids == group) & live).nonzero().flatten()
        R, L, n = rewards[rows], lengths[rows], len(rows)
        if n < 2:
            expected["grpo"][rows] = R / (1 + 1e-6)
            continue
        expected["grpo"][rows] = (R - R.mean()) / (R.std() + 1e-6)
        expected["rloo"][rows] = torch.stack([R[i] - (R.sum() - R[i]) / (n - 1) for i in range(n)])
        expected["opo"][rows] = R - (L * R).sum() / L.sum()
        best, second = R.topk(2).values
        expected["grpo_passk"][rows[R.argmax()]] = (best - second) / (R.std() + 1e-6)
    for name, numbers in expected.items():
        wanted = torch.where(x.mask, numbers[:, None], 0.0).float()
        torch.testing.assert_close(get_estimator(name)(x)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
@pytest.mark.parametrize("value", [0.1, 0.35, 0.6, -1 / 3])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_a_group_of_equal_rewards_gives_exactly_zero(name: str, value: float, size: int) -> None:
    x = outcome([value] * size, [5] * size, [1 + i % 3 for i in range(size)])
    assert torch.equal(get_estimator(name)(x)[0], torch.zeros(x.mask.shape))
    exact = replace(x, token_rewards=x.token_rewards.double() / 3)  # thirds: sums of these round in float64 as well
    assert torch.equal(get_estimator(name)(exact)[0], torch.zeros(x.mask.shape))


def test_a_group_of_one_keeps_its_reward_in_grpo_and_gives_zero_elsewhere() -> None:
    x = outcome([0.6, 1.0, 0.0], [0, 1, 1])
    assert per_trajectory("grpo", x)[0] == pytest.approx(0.6 / (1 + 1e-6), rel=1e-6)
    assert per_trajectory("grpo", replace(x, norm_by_std=False))[0] == pytest.approx(0.6)
    for name in ("rloo", "opo", "gpg", "grpo_passk"):
        assert per_trajectory(name, x)[0] == 0.0


def test_the_only_scored_sibling_gets_zero_in_grpo() -> None:
    x = outcome([0.6, math.nan, 1.0, 0.0], [0, 0, 1, 1], scored=torch.tensor([True, False, True, True]))
    assert per_trajectory("grpo", x)[:2] == [0.0, 0.0]


def test_a_trajectory_without_trainable_tokens_does_not_count_in_its_group() -> None:
    with_empty = outcome([1.0, 0.0, 0.5, 9.0], [0, 0, 0, 0], [2, 2, 2, 0])
    without = outcome([1.0, 0.0, 0.5], [0, 0, 0], [2, 2, 2])
    for name in GROUP_ESTIMATORS:
        assert per_trajectory(name, with_empty)[:3] == per_trajectory(name, without)


def test_tied_best_trajectories_gain_nothing_in_passk() -> None:
    assert per_trajectory("grpo_passk", outcome([1.0, 1.0, 0.0], [0, 0, 0])) == [0.0, 0.0, 0.0]


def test_gpg_scales_by_the_share_of_nonzero_rewards() -> None:
    x = outcome([1.0, 0.0, 0.0, 0.0], [0, 0, 1, 1])
    assert per_trajectory("gpg", x) == [2.0, -2.0, 0.0, 0.0]  # centred +-0.5, four trajectories, one non-zero


def test_remax_subtracts_the_greedy_reward_from_the_rewards_to_come() -> None:
    x = AdvantageInputs(
        torch.tensor([[1.0, 9.0, 2.0]]),
        torch.tensor([[True, False, True]]),
        torch.tensor([0]),
        greedy_rewards=torch.tensor([0.5]),
    )
    advantages, returns = get_estimator("remax")(x)
    assert advantages.tolist() == [[2.5, 0.0, 1.5]]
    assert returns.tolist() == [[3.0, 0.0, 2.0]]


def test_reward_and_none_have_no_baseline() -> None:
    x = AdvantageInputs(torch.tensor([[1.0, 2.0]]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([0]), gamma=0.5)
    assert get_estimator("reward")(x)[0].tolist() == [[3.0, 3.0]]
    assert get_estimator("none")(x)[0].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(("name", "needs"), [("gae", "values"), ("remax", "greedy")])
def test_a_missing_input_is_named(name: str, needs: str) -> None:
    with pytest.raises(ValueError, match=needs):
        get_estimator(name)(outcome([1.0], [0]))


def test_equal_advantages_whiten_to_exactly_zero() -> None:
    x = replace(outcome([0.1] * 1000, list(range(1000))), gamma=1.0)
    assert torch.equal(get_estimator("reinforce_plus_plus")(x)[0], torch.zeros(1000, 2))


def test_scores_are_placed_on_the_last_trainable_token_or_nowhere() -> None:
    mask = torch.tensor([[True, False, True, False], [False] * 4, [True, True, True, True]])
    placed = place_rewards(torch.tensor([1.0, 2.0, 3.0]), mask)
    assert placed.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 3]]


@each_estimator
@pytest.mark.parametrize(("trajectories", "tokens"), [(4, 0), (0, 0), (0, 3), (4, 3)])
def test_a_step_without_a_trainable_token_has_advantages_of_its_shape_all_0(
    name: str, trajectories: int, tokens: int
) -> None:
    mask = torch.zeros(trajectories, tokens, dtype=torch.bool)
    placed = place_rewards(torch.ones(trajectories), mask)
    groups = torch.arange(trajectories) // 2
    values, greedy = torch.ones(mask.shape), torch.ones(trajectories)
    inputs = AdvantageInputs(placed, mask, groups, values=values, greedy_rewards=greedy)
    for column in (placed, *get_estimator(name)(inputs)):
        assert torch.equal(column, torch.zeros(trajectories, tokens))
