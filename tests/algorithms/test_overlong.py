"""The soft overlong penalty at its corners."""

import pytest
import torch

from hone.algorithms import overlong_penalty


def test_the_penalty_falls_from_the_start_of_the_buffer_to_the_limit() -> None:
    lengths = torch.tensor([0, 80, 85, 90, 100, 130])
    assert overlong_penalty(lengths, 100, 20, 2.0).tolist() == [0.0, 0.0, -0.5, -1.0, -2.0, -2.0]


@pytest.mark.parametrize("buffer_len", [0, -1, 101])
def test_a_buffer_outside_the_response_is_refused(buffer_len: int) -> None:
    with pytest.raises(ValueError, match="overlong_buffer.len.*100"):
        overlong_penalty(torch.tensor([5]), 100, buffer_len, 1.0)
