"""Seconds of every advantage estimator at 8192 trajectories x 4096 tokens on one core, the best of three calls.

python benchmarks/advantages.py [--trajectories 8192] [--tokens 4096]
"""

from __future__ import annotations

import argparse
import time

import torch

from hone.algorithms import ADVANTAGE_ESTIMATORS, AdvantageInputs, place_rewards


def inputs(trajectories: int, tokens: int) -> AdvantageInputs:
    """Groups of 8, lengths spread over the rectangle, a reward on the last token."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, tokens + 1, (trajectories,), generator=generator)
    mask = torch.arange(tokens) < lengths[:, None]
    scores = torch.rand(trajectories, generator=generator)
    return AdvantageInputs(
        token_rewards=place_rewards(scores, mask),
        mask=mask,
        group_ids=torch.arange(trajectories) // 8,
        values=torch.randn(trajectories, tokens, generator=generator),
        greedy_rewards=torch.rand(trajectories, generator=generator),
        gamma=0.99,
        lam=0.95,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = inputs(options.trajectories, options.tokens)
    for name, estimator in sorted(ADVANTAGE_ESTIMATORS.items()):
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            estimator(x)
            seconds.append(time.perf_counter() - begun)
        print(f"{name:30s} {min(seconds):6.2f} s")


if __name__ == "__main__":
    main()
