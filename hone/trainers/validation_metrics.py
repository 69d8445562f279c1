"""The numbers of a validation or an evaluation. Imports no torch: `hone eval` starts in a moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

from hone.rewards import Reward


def validation_metrics(data_sources: Sequence[str], uids: Sequence[str], rewards: Sequence[Reward]) -> dict[str, float]:
    """val-core/<data source>/<variable>/{mean@N, best@N/mean, maj@N/mean} and val-aux for further numbers.

    The variable is `acc` when the reward function gives one, else `reward`. best@N is the best of a prompt's N
    responses; maj@N, where the function gives `pred`, is the score of the most frequent prediction. Responses that
    are not scored are left out, as are prompts without any other, and counted in val-aux/<data source>/unscored.
    """
    by_source: dict[str, dict[str, list[Reward]]] = defaultdict(lambda: defaultdict(list))
    for source, uid, reward in zip(data_sources, uids, rewards, strict=True):
        by_source[source][uid].append(reward)
    metrics: dict[str, float] = {}
    for source, prompts in by_source.items():
        metrics.update(_of_source(source, list(prompts.values())))
    return metrics


def _of_source(source: str, prompts: list[list[Reward]]) -> dict[str, float]:
    n = max(map(len, prompts))
    scored = [[r for r in responses if r.score is not None] for responses in prompts]
    unscored = sum(map(len, prompts)) - sum(map(len, scored))
    metrics = {f"val-aux/{source}/unscored": float(unscored)} if unscored else {}
    scored = [responses for responses in scored if responses]
    names = {k for responses in scored for r in responses for k, v in r.extras.items() if isinstance(v, float)}
    core = "acc" if "acc" in names else "reward"
    for name in sorted(names | {"reward"}) if scored else ():
        section = "val-core" if name == core else "val-aux"
        metrics.update(_of_variable(f"{section}/{source}/{name}", name, scored, n))
    return metrics


def _of_variable(prefix: str, name: str, prompts: list[list[Reward]], n: int) -> dict[str, float]:
    """`n` is the number of responses to each prompt, of which some may be left out."""
    values = [[_number(r, name) for r in responses] for responses in prompts]
    metrics = {f"{prefix}/mean@{n}": mean(mean(v) for v in values)}
    if n > 1:
        metrics[f"{prefix}/best@{n}/mean"] = mean(max(v) for v in values)
        if all("pred" in r.extras for responses in prompts for r in responses):
            picks = [_majority(responses, v) for responses, v in zip(prompts, values, strict=True)]
            metrics[f"{prefix}/maj@{n}/mean"] = mean(picks)
    return metrics


def _number(reward: Reward, name: str) -> float:
    value = reward.score if name == "reward" else reward.extras.get(name, 0.0)
    return float(value) if isinstance(value, float | int) else 0.0


def _majority(responses: list[Reward], values: list[float]) -> float:
    """The value of the first response that gives the most frequent prediction."""
    predictions = [str(r.extras["pred"]) for r in responses]
    return values[predictions.index(max(predictions, key=predictions.count))]
