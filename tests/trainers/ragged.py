"""Small random batches of trajectories, with holes in their masks."""

from __future__ import annotations

import torch

from hone.batch import Batch


def random_batch(trajectories: int, *, seed: int, per_prompt: int = 2, longest: int = 6) -> Batch:
    """Prompts of 1 to 3 tokens, responses of 1 to `longest` of which some tokens are not the policy's."""
    draw = torch.Generator().manual_seed(seed)
    integer = lambda low, high: int(torch.randint(low, high + 1, (1,), generator=draw))  # noqa: E731
    prompts = [integer(1, 3) for _ in range(trajectories)]
    responses = [integer(1, longest) for _ in range(trajectories)]
    masks = [torch.rand(n, generator=draw) > 0.3 for n in responses]
    real = lambda: [torch.randn(p + n, generator=draw) for p, n in zip(prompts, responses)]  # noqa: E731
    return Batch.from_sequences(
        {
            "input_ids": [torch.randint(0, 50, (p + n,), generator=draw) for p, n in zip(prompts, responses)],
            "response_mask": [torch.cat([torch.zeros(p), m]).long() for p, m in zip(prompts, masks)],
            "old_logprobs": real(),
            "ref_logprobs": real(),
            "rollout_logprobs": real(),
            "turn_rewards": [torch.zeros(p + n) for p, n in zip(prompts, responses)],
        },
        {
            "prompt_length": torch.tensor(prompts),
            "group": torch.arange(trajectories) // per_prompt,
            "score": torch.randn(trajectories, generator=draw),
            "scored": torch.ones(trajectories, dtype=torch.bool),
            "num_turns": torch.ones(trajectories, dtype=torch.int64),
        },
    )
