"""Sums, means and spreads of the trajectories that answer the same prompt, for all groups at once."""

from dataclasses import dataclass

import torch
from torch import Tensor


def group_sum(values: Tensor, group_ids: Tensor, groups: int) -> Tensor:
    """Sum of `values` per group id (0 .. groups-1), both of one shape -> float64 [groups]."""
    total = torch.zeros(groups, dtype=torch.float64, device=values.device)
    return total.index_add(0, group_ids.flatten(), values.flatten().to(torch.float64))


def masked_group_mean(values: Tensor, group_ids: Tensor, mask: Tensor) -> Tensor:
    """Each position's group mean over the masked positions, in the shape and type of `values`.

    `values` must already be 0 under the mask. Serves tokens of trajectories (`segment_ids`) as well.
    """
    if values.numel() == 0:
        return values
    groups = int(group_ids.max()) + 1
    mean = group_sum(values, group_ids, groups) / group_sum(mask, group_ids, groups).clamp(min=1)
    return mean[group_ids].to(values.dtype)


@dataclass
class GroupStatistics:
    """Statistics of each row's group over the group's counted rows; every field has one entry per row, [B]."""

    count: Tensor  # how many rows of the group count
    mean: Tensor
    std: Tensor  # unbiased; 0 for fewer than two
    constant: Tensor  # bool: all counted values are equal, which a std of 0 need not say after rounding


def group_statistics(values: Tensor, group_ids: Tensor, counted: Tensor) -> GroupStatistics:
    """Statistics per group; `values` [B] (0 where not counted), `group_ids` [B] any integers, `counted` [B] bool."""
    ids = dense_ids(group_ids)
    groups = ids.numel()
    values = values.to(torch.float64)
    count = group_sum(counted, ids, groups)
    mean = group_sum(values, ids, groups) / count.clamp(min=1)
    squares = group_sum(torch.where(counted, values - mean[ids], 0.0).square(), ids, groups)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    constant = _extreme(values, ids, counted, "amax") == _extreme(values, ids, counted, "amin")
    return GroupStatistics(count[ids], mean[ids], std[ids], constant[ids])


def dense_ids(group_ids: Tensor) -> Tensor:
    """The same grouping with the ids 0 .. groups-1."""
    return torch.unique(group_ids, return_inverse=True)[1]


def rank_in_group(values: Tensor, group_ids: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Place of each row among its group's counted rows, best first from 0, and its group's second-best value, [B].

    Rows that do not count come last; the second-best value means nothing in a group with fewer than two counted rows.
    """
    ids = dense_ids(group_ids)
    by_value = torch.where(counted, -values, torch.inf).argsort(stable=True)
    order = by_value[ids[by_value].argsort(stable=True)]
    sizes = torch.bincount(ids)
    starts = sizes.cumsum(0) - sizes
    rank = torch.empty_like(ids)
    rank[order] = torch.arange(len(ids), device=ids.device) - starts[ids[order]]
    second = torch.minimum(starts + 1, starts + sizes - 1)
    return rank, values[order[second]][ids]


def _extreme(values: Tensor, ids: Tensor, counted: Tensor, reduce: str) -> Tensor:
    fill = -torch.inf if reduce == "amax" else torch.inf
    start = torch.full((ids.numel(),), fill, dtype=values.dtype, device=values.device)
    return start.scatter_reduce(0, ids, torch.where(counted, values, fill), reduce=reduce)
