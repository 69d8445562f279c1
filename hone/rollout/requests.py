"""What every engine says of a request that it cannot answer."""

from __future__ import annotations

from collections.abc import Sequence

from hone.errors import UserError
from hone.rollout.interface import Sampling


def check_request(prompt_ids: Sequence[int], sampling: Sampling, max_model_len: int) -> None:
    """Raises UserError for a request that could never fit, ValueError for one that asks for nothing."""
    total = len(prompt_ids) + sampling.max_tokens
    if not prompt_ids or sampling.max_tokens < 1:
        raise ValueError("a completion needs a prompt of at least one token and max_tokens of at least 1")
    if total > max_model_len:
        raise UserError(
            f"a prompt of {len(prompt_ids)} tokens and max_tokens={sampling.max_tokens} need {total} tokens, "
            f"rollout.max_model_len is {max_model_len}"
        )


def no_distribution(version: int, dtype: str) -> UserError:
    """For logits from which nothing can be drawn."""
    return UserError(
        f"the model's logits are NaN or infinite (weights after step {version}), so no token can be drawn: the weights "
        f"hold NaN, have diverged (lower the learning rate), or overflow in {dtype}"
    )
