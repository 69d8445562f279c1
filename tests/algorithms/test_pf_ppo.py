"""PF-PPO draws trajectories with the probabilities of its weights."""

import math

import pytest
import torch

from hone.algorithms import resample_indices


def shares(rewards: list[float], method: str, weight_pow: float = 2.0) -> list[float]:
    """How often each reward is drawn, over many copies of the same rewards."""
    copies = 20_000
    drawn = resample_indices(torch.tensor(rewards * copies), method, weight_pow, torch.Generator().manual_seed(0))
    assert drawn.shape == (len(rewards) * copies,)
    return (torch.bincount(drawn % len(rewards), minlength=len(rewards)) / len(drawn)).tolist()


@pytest.mark.parametrize(
    ("rewards", "method", "weights"),
    [
        ([1.0, -2.0, 0.0], "pow", [1, 4, 0]),
        ([0.0, 0.0], "pow", [1, 1]),
        ([1e30, 2e30], "pow", [1, 4]),
        ([1.0, 0.5, 0.0, 1.0], "max_min", [1, 0, 1, 1]),
        ([1.0, 0.5, 0.0], "max_random", [4, 1, 1]),
        ([math.nan, 1.0, 2.0], "pow", [0, 1, 4]),
        ([math.nan, 1.0, 0.0, 0.5], "max_min", [0, 1, 1, 0]),
    ],
)
def test_rows_are_drawn_in_proportion_to_their_weights(rewards: list[float], method: str, weights: list[float]) -> None:
    assert shares(rewards, method) == pytest.approx([w / sum(weights) for w in weights], abs=0.01)


def test_the_draw_is_a_function_of_the_generator() -> None:
    rewards = torch.rand(50, generator=torch.Generator().manual_seed(0))
    draws = [resample_indices(rewards, "pow", 1.0, torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_without_any_reward_every_row_stays_once() -> None:
    assert resample_indices(torch.full((3,), math.nan), "pow", 2.0).tolist() == [0, 1, 2]


def test_an_unknown_method_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'max'.*max_min"):
        resample_indices(torch.ones(2), "max", 2.0)
