"""What needs more than the configuration to be known and less than a model: the user's own functions and agents, the
GPU, and whether a model that is on no disk can be had from the hub."""

from __future__ import annotations

from collections.abc import Iterator

from hone.config.paths import models_of
from hone.config.schema import EvaluationConfig, GenerationConfig, PPOConfig, SFTConfig
from hone.config.schema.base import Node
from hone.user_code import load_function


def check_before_start(config: Node) -> None:
    """Raises UserError for the first that a run would fail on. Imports only what the configuration asks for."""
    for section, path, name in _functions(config):
        load_function(path, name, section=section)
    if isinstance(config, PPOConfig):
        _check_agents(config)
        _check_engine(config)
    if isinstance(config, (PPOConfig, SFTConfig, GenerationConfig)):
        _check_device(config)
    for key, path in models_of(config).items():
        _check_model(key, path)


def _functions(config: Node) -> Iterator[tuple[str, str, str]]:
    """(section, file, name) of each function from a file of the user's."""
    if isinstance(config, (PPOConfig, EvaluationConfig)):
        reward = config.custom_reward_function
        if reward.path is not None:
            yield "custom_reward_function", reward.path, reward.name
    if isinstance(config, PPOConfig):
        sections = {
            "algorithm.custom_estimator": config.algorithm.custom_estimator,
            "actor_rollout_ref.actor.policy_loss.custom_loss": config.actor_rollout_ref.actor.policy_loss.custom_loss,
        }
        for section, own in sections.items():
            if own.path is not None and own.name is not None:
                yield section, own.path, own.name


def _check_agents(config: PPOConfig) -> None:
    agent = config.actor_rollout_ref.rollout.agent
    plain = type(agent).model_fields["default_agent_loop"].default
    if agent.agent_loop_path is None and agent.default_agent_loop == plain:
        return
    from hone.trainers.row_checks import load_own_agents

    load_own_agents(agent)


def _check_engine(config: PPOConfig) -> None:
    """Importing vLLM takes seconds: only for arguments that it alone knows."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "vllm" and rollout.engine_kwargs.vllm:
        from hone.rollout.vllm.arguments import check_names

        check_names(rollout.engine_kwargs.vllm)


def _check_device(config: PPOConfig | SFTConfig | GenerationConfig) -> None:
    """Several ranks may run on other machines; the cluster is asked then."""
    if config.trainer.device == "cuda" and config.ranks == 1:
        from hone.models.precision import pick_device

        pick_device("cuda")


def _check_model(key: str, path: str) -> None:
    from hone.models.hub import require_reachable

    require_reachable(key, path)
