"""`hone eval`: scores for a file of responses, by the same reward functions that training uses."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from hone.config import Loaded
from hone.config.schema.generation import EvaluationConfig
from hone.data.files import read_rows
from hone.errors import UserError
from hone.rewards.manager import Reward, RewardManager
from hone.rewards.scorers import default_compute_score
from hone.tracking.console import console
from hone.trainers.metrics import validation_metrics
from hone.user_code import load_function


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
        path.write_text(json.dumps(metrics, indent=1) + "\n")
    return metrics


def _scores(config: EvaluationConfig, manager: RewardManager) -> tuple[list[str], list[str], list[Reward]]:
    data = config.data
    rows = read_rows(data.path)
    for key in ("response_key", "data_source_key", "reward_model_key"):
        rows.require(getattr(data, key), f"data.{key}")
    sources, uids, rewards = [], [], []
    for index in range(len(rows)):
        row = rows[index]
        responses = row[data.response_key]
        if not isinstance(responses, list) or not all(isinstance(r, str) for r in responses) or not responses:
            raise UserError(
                f"{rows.where(index)}, column {data.response_key!r}: expected a list of at least one text, "
                f"found {responses!r:.80}"
            )
        reward_model = row[data.reward_model_key] or {}
        if not isinstance(reward_model, dict):
            raise UserError(
                f"{rows.where(index)}, column {data.reward_model_key!r}: expected an object with the key "
                f"'ground_truth', found {reward_model!r:.80}"
            )
        truth = reward_model.get("ground_truth")
        for response in responses:
            sources.append(str(row[data.data_source_key]))
            uids.append(str(index))
            rewards.append(manager.score_one(sources[-1], response, truth, row.get("extra_info") or {}))
    return sources, uids, rewards
