"""The numbers of a step under the names that users' dashboards know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

import torch
from torch import Tensor

from hone.batch import Batch
from hone.rewards import Reward
from hone.trainers.scoring import turn_sums

BLOCK = 1 << 16  # tokens


def batch_metrics(batch: Batch, max_response_length: int) -> dict[str, float]:
    """Lengths, scores, rewards, advantages, returns and values of a step; masked positions never count."""
    mask = batch["response_mask"].bool()
    lengths = batch.lengths - batch["prompt_length"]
    metrics = {
        **_spread("response_length", lengths),
        **_spread("prompt_length", batch["prompt_length"]),
        **_spread("num_turns", batch["num_turns"]),
        "response_length/clip_ratio": float((lengths >= max_response_length).float().mean()),
        **_spread("critic/score", batch["score"][batch["scored"]]),
        **_token_spread("critic/advantages", batch["advantages"], mask),
        **_token_spread("critic/returns", batch["returns"], mask),
    }
    rewards = batch.row_sums(torch.where(mask, batch["rewards"], 0.0))
    metrics.update(_spread("critic/rewards", rewards[batch["scored"]]))
    if bool(batch["turn_rewards"].any()):
        metrics.update(_spread("critic/turn_rewards", turn_sums(batch)[batch["scored"]]))
    if "values" in batch and bool(mask.any()):
        values, returns = batch["values"][mask], batch["returns"][mask]
        metrics.update(_spread("critic/values", values))
        unexplained = (returns - values).var(unbiased=False) / returns.var(unbiased=False).clamp(min=1e-8)
        metrics["critic/vf_explained_var"] = float(1 - unexplained)
    return metrics


def reward_metrics(rewards: Sequence[Reward]) -> dict[str, float]:
    """Failures of a step's reward calls, and the mean of each number that the function returned beside the score."""
    extras: dict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for name, value in reward.extras.items():
            if isinstance(value, float):
                extras[name].append(value)
    return {**failures(rewards), **{f"reward/{name}/mean": mean(values) for name, values in extras.items()}}


def failures(rewards: Sequence[Reward]) -> dict[str, float]:
    """Reward calls that raised, and those that took too long."""
    return {
        "reward/errors": float(sum(r.error is not None and not r.timeout for r in rewards)),
        "reward/timeouts": float(sum(r.timeout for r in rewards)),
    }


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if not len(values):
        return {}
    values = values.float()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _token_spread(name: str, column: Tensor, mask: Tensor) -> dict[str, float]:
    """`_spread` of the tokens under the mask, block by block: what is in the cache is read three times for the price of
    once."""
    found: list[tuple[int, float, float, float]] = []
    for block, of_block in zip(column.split(BLOCK), mask.split(BLOCK), strict=True):
        values = block[of_block].float()
        if len(values):
            least, most = values.aminmax()
            found.append((len(values), float(values.sum(dtype=torch.float64)), float(most), float(least)))
    if not found:
        return {}
    counts, sums, most, least = zip(*found, strict=True)
    return {f"{name}/mean": sum(sums) / sum(counts), f"{name}/max": max(most), f"{name}/min": min(least)}


def speed_metrics(seconds: dict[str, float], batch: Batch, ranks: int) -> dict[str, float]:
    """perf/* and timing_per_token_ms/*; `seconds` are those of the step's parts."""
    tokens = batch.num_tokens
    response = int(batch["response_mask"].sum())
    step = seconds["step"]
    metrics = {
        "perf/total_num_tokens": float(tokens),
        "perf/time_per_step": step,
        "perf/throughput": tokens / (step * ranks),
        **{f"global_seqlen/{k.rsplit('/', 1)[1]}": v for k, v in _spread("all", batch.lengths).items()},
    }
    for name in ("gen", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"):
        if name in seconds:
            count = response if name == "gen" else tokens
            metrics[f"timing_per_token_ms/{name}"] = 1000 * seconds[name] / max(count, 1)
    return metrics
