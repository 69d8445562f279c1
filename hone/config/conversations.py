"""Rules about conversations of several turns: who answers the model, and what it reads."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import GenerationConfig, PPOConfig
from .schema.generation import GenerationRolloutConfig
from .schema.rollout import RolloutConfig

ROLLOUT = {"ppo": "actor_rollout_ref.rollout", "generate": "rollout"}  # by command
AGENTS = ("tools", "tool_agent")  # that need multi_turn
Conversing = PPOConfig | GenerationConfig


def rollout_of(config: Conversing) -> tuple[RolloutConfig | GenerationRolloutConfig, str]:
    """The section that says how trajectories are made, and its name."""
    if isinstance(config, PPOConfig):
        return config.actor_rollout_ref.rollout, ROLLOUT["ppo"]
    return config.rollout, ROLLOUT["generate"]


def conversation_problems(config: Conversing) -> Iterator[Problem]:
    rollout, place = rollout_of(config)
    keys, switch, agent = rollout.multi_turn, f"{place}.multi_turn.enable", f"{place}.agent.default_agent_loop"
    tools, users = f"{place}.multi_turn.tool_config_path", f"{place}.multi_turn.interaction_config_path"
    if keys.enable and keys.tool_config_path is None and keys.interaction_config_path is None:
        fix = f"set {tools} or {users}, or remove {switch}"
        yield Problem(switch, "is true, but nobody answers the model", "tools or interactions", fix, (tools, users))
    if not keys.enable and rollout.agent.default_agent_loop in AGENTS:
        wrong = f"is {rollout.agent.default_agent_loop}, but {switch} is false"
        yield Problem(agent, wrong, "an agent of one turn, or of your own", f"set {switch}=True", (switch,))
    if keys.max_parallel_calls is not None and keys.enable and keys.tool_config_path is None:
        key = f"{place}.multi_turn.max_parallel_calls"
        yield Problem(key, f"is set, but {tools} is null: no tool can be called", "null", f"remove {key}", (tools,))


def conversation_files(config: Conversing) -> dict[str, str | None]:
    """The files that are read."""
    rollout, place = rollout_of(config)
    named = ("tool_config_path", "interaction_config_path") if rollout.multi_turn.enable else ()
    files = {f"{place}.multi_turn.{name}": getattr(rollout.multi_turn, name) for name in named}
    return {f"{place}.agent.agent_loop_path": rollout.agent.agent_loop_path, **files}
