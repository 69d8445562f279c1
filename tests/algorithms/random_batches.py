"""Random trajectories for the tests of this folder."""

import torch

from hone.algorithms import AdvantageInputs, PolicyLossInputs

ESTIMATOR_NAMES = [
    "gae",
    "grpo",
    "grpo_passk",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "gpg",
    "reward",
    "none",
]
LOSS_NAMES = [
    "vanilla",
    "gspo",
    "cispo",
    "sapo",
    "gpg",
    "geo_mean",
    "clip_cov",
    "kl_cov",
    "dppo_tv",
    "dppo_kl",
    "dro",
]


def random_advantage_inputs(seed: int, rows: int = 7, length: int = 6) -> AdvantageInputs:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, length, generator=g) < 0.6
    return AdvantageInputs(
        token_rewards=torch.randn(rows, length, generator=g),
        mask=mask,
        group_ids=torch.randint(0, 3, (rows,), generator=g),
        values=torch.randn(rows, length, generator=g),
        greedy_rewards=torch.randn(rows, generator=g),
        gamma=0.9,
        lam=0.8,
    )


def random_loss_inputs(seed: int, lengths: tuple[int, ...] = (4, 1, 6, 3)) -> PolicyLossInputs:
    """Packed trajectories in float64, with a selection so that clip_cov and kl_cov draw nothing at random."""
    g = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    old = -torch.rand(tokens, generator=g, dtype=torch.float64) * 3 - 0.05
    new = (old + 0.4 * torch.randn(tokens, generator=g, dtype=torch.float64)).clamp(max=-0.01)
    return PolicyLossInputs(
        logprobs=new.requires_grad_(),
        old_logprobs=old,
        advantages=torch.randn(tokens, generator=g, dtype=torch.float64),
        mask=torch.rand(tokens, generator=g) < 0.7,
        segment_ids=torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        selection=torch.rand(tokens, generator=g) < 0.3,
    )
