"""`hone eval`: scores for a file of responses, by the same reward functions that training uses."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from hone.config import Loaded
from hone.config.schema.generation import EvaluationConfig, EvaluationDataConfig
from hone.data.files import Row, read_rows
from hone.data.schema import ground_truth
from hone.disk import naming
from hone.errors import UserError
from hone.rewards import refuse_if_all_raised
from hone.rewards.manager import Reward, RewardManager
from hone.rewards.scorers import check_scorable, default_compute_score
from hone.tracking.console import console
from hone.tracking.strict_json import dumps
from hone.trainers.validation_metrics import validation_metrics
from hone.user_code import load_function

logger = logging.getLogger(__name__)


def evaluate(loaded: Loaded) -> dict[str, float]:
    """Prints and returns val-core/<data source>/<variable>/mean@N and kin; also written to output_path."""
    config: EvaluationConfig = loaded.config
    custom = config.custom_reward_function
    manager = RewardManager(load_function(custom.path, custom.name) if custom.path else default_compute_score)
    sources, uids, rewards = _scores(config, manager)
    metrics = validation_metrics(sources, uids, rewards)
    metrics |= {"reward/errors": float(manager.errors), "reward/timeouts": float(manager.timeouts)}
    table = Table("metric", "value", title=f"{len(set(uids))} prompts, {len(rewards)} responses")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)
    if config.output_path:
        path = Path(config.output_path).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            path.write_text(dumps(metrics, indent=1) + "\n")
    return metrics


@dataclass(frozen=True)
class _Answered:
    """A row's responses and what scores them."""

    responses: list[str]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]


def _scores(config: EvaluationConfig, manager: RewardManager) -> tuple[list[str], list[str], list[Reward]]:
    data = config.data
    rows = read_rows(data.path)
    for key in ("response_key", "data_source_key", "reward_model_key"):
        rows.require(getattr(data, key), f"data.{key}")
    # All rows are read before the first is scored: scoring may take long, and a mistake should not wait for it.
    by_rules = config.custom_reward_function.path is None
    answered = [read_answered(row, data, by_rules=by_rules) for row in rows]
    sources, uids, pending = [], [], []
    for index, row in enumerate(answered):
        for response in row.responses:
            sources.append(row.data_source)
            uids.append(str(index))
            pending.append(manager.submit(row.data_source, response, row.ground_truth, row.extra_info))
    rewards = [future.result() for future in pending]
    refuse_if_all_raised(rewards)
    if all(reward.score is None for reward in rewards):
        logger.warning("nothing was scored: the reward function returned None for all %d responses", len(rewards))
    return sources, uids, rewards


def read_answered(row: Row, keys: EvaluationDataConfig, *, by_rules: bool) -> _Answered:
    """Raises UserError for a row without responses, or one that the rules of its data source cannot score."""
    responses = row.value(keys.response_key, "data.response_key")
    if not isinstance(responses, list) or not responses or not all(isinstance(text, str) for text in responses):
        raise UserError(
            f"{row.where}, column '{keys.response_key}': expected a list of at least one text, found {responses!r:.80}"
        )
    data_source = str(row.value(keys.data_source_key, "data.data_source_key"))
    truth = ground_truth(row, keys.reward_model_key)
    if by_rules:
        _check_scorable(row, data_source, truth)
    return _Answered(responses, data_source, truth, row.mapping("extra_info"))


def _check_scorable(row: Row, data_source: str, truth: Any) -> None:
    try:
        check_scorable(data_source, truth)
    except UserError as problem:
        raise UserError(f"{row.where}: {problem}") from problem
