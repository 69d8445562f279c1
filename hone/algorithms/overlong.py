"""The soft penalty on responses that come close to the length limit."""

from torch import Tensor


def overlong_penalty(response_lengths: Tensor, max_length: int, buffer_len: int, penalty_factor: float) -> Tensor:
    """Added to the reward, fp32, at most 0: falls linearly from 0 at max_length - buffer_len to -penalty_factor at
    max_length and stays there (DAPO, arXiv 2503.14476, equation 13)."""
    if not 0 < buffer_len <= max_length:
        raise ValueError(
            f"overlong_buffer.len must lie between 1 and the maximal response length {max_length}, got {buffer_len}"
        )
    exceeded = (response_lengths - (max_length - buffer_len)).float().clamp(0, buffer_len)
    return -exceeded / buffer_len * penalty_factor + 0.0  # + 0.0 turns -0.0 into 0.0
