"""Policy filtration: which of a step's trajectories are trained on, and how often."""

from __future__ import annotations

import torch

from hone.algorithms import resample_indices
from hone.batch import Batch
from hone.config.schema.algorithm import PfPpo
from hone.trainers.sampling import trajectory_seed
from hone.trainers.scoring import shaped_scores, turn_sums


def redraw(batch: Batch, pf_ppo: PfPpo, *, seed: int, step: int) -> tuple[Batch, dict[str, float]]:
    """As many trajectories, drawn with replacement by their rewards. Their advantages are those of the whole step, so
    that no baseline and no spread moves with what is drawn."""
    generator = torch.Generator().manual_seed(trajectory_seed(seed, "pf_ppo", step))
    rewards = torch.where(batch["scored"], shaped_scores(batch) + turn_sums(batch), torch.nan)
    rows = resample_indices(rewards, pf_ppo.reweight_method, pf_ppo.weight_pow, generator)
    return batch.select(rows), {"pf_ppo/distinct_share": len(rows.unique()) / max(len(rows), 1)}
