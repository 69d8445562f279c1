"""Whether a command can use one row, as far as that is known without a tokenizer: by the checks that its run makes."""

from __future__ import annotations

from hone.config.schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.data.chat import as_messages, as_prompt
from hone.data.files import Row
from hone.data.schema import ground_truth
from hone.errors import UserError


def check_row(row: Row, config: Node) -> None:
    """Raises UserError, which names the row."""
    if isinstance(config, PPOConfig):
        _check_prompt(row, config.data.prompt_key)
        source = str(row.value(config.data.reward_fn_key, "data.reward_fn_key"))
        if config.custom_reward_function.path is None:
            _check_scorable(row, source)
    elif isinstance(config, GenerationConfig):
        _check_prompt(row, config.data.prompt_key)
    elif isinstance(config, SFTConfig):
        _check_demonstration(row, config)
    elif isinstance(config, EvaluationConfig):
        from hone.trainers.evaluate import read_answered

        read_answered(row, config.data, by_rules=config.custom_reward_function.path is None)


def _check_prompt(row: Row, column: str) -> None:
    as_prompt(row.value(column, "data.prompt_key"), f"{row.where}, column '{column}'")


def _check_scorable(row: Row, source: str) -> None:
    from hone.rewards.scorers import check_scorable

    try:
        check_scorable(source, ground_truth(row))
    except UserError as problem:
        raise UserError(f"{row.where}: {problem}") from problem


def _check_demonstration(row: Row, config: SFTConfig) -> None:
    data = config.data
    if data.multiturn.enable:
        value = row.value(data.messages_key, "data.messages_key")
        as_messages(value, f"{row.where}, column '{data.messages_key}'")
    else:
        asked = row.inside(data.prompt_key, "data.prompt_key", data.prompt_dict_keys)
        as_prompt(asked, f"{row.where}, column '{data.prompt_key}'")
        row.text(data.response_key, "data.response_key", data.response_dict_keys)
