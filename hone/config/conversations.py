"""Rules about conversations of several turns: who answers the model."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import PPOConfig

ROLLOUT = "actor_rollout_ref.rollout"
SECTION = f"{ROLLOUT}.multi_turn"
AGENTS = ("tools", "tool_agent")  # that need multi_turn


def conversation_problems(config: PPOConfig) -> Iterator[Problem]:
    rollout = config.actor_rollout_ref.rollout
    keys, switch, agent = rollout.multi_turn, f"{SECTION}.enable", f"{ROLLOUT}.agent.default_agent_loop"
    tools, users = f"{SECTION}.tool_config_path", f"{SECTION}.interaction_config_path"
    if keys.enable and keys.tool_config_path is None and keys.interaction_config_path is None:
        fix = f"set {tools} or {users}, or remove {switch}"
        yield Problem(switch, "is true, but nobody answers the model", "tools or interactions", fix, (tools, users))
    if not keys.enable and rollout.agent.default_agent_loop in AGENTS:
        wrong = f"is {rollout.agent.default_agent_loop}, but {switch} is false"
        yield Problem(agent, wrong, "an agent of one turn, or of your own", f"set {switch}=True", (switch,))
    if keys.max_parallel_calls is not None and keys.enable and keys.tool_config_path is None:
        key = f"{SECTION}.max_parallel_calls"
        yield Problem(key, f"is set, but {tools} is null: no tool can be called", "null", f"remove {key}", (tools,))


def conversation_files(config: PPOConfig) -> dict[str, str | None]:
    """The files that are read."""
    keys = config.actor_rollout_ref.rollout.multi_turn
    named = ("tool_config_path", "interaction_config_path") if keys.enable else ()
    return {f"{SECTION}.{name}": getattr(keys, name) for name in named}
