"""Agents by name. A user's file registers more with the same decorator (`rollout.agent.agent_loop_path`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hone.agents.checks import CheckedAgent
from hone.agents.llm import Agent
from hone.errors import UserError
from hone.user_code import run_file

KEY = "actor_rollout_ref.rollout.agent.agent_loop_path"
AGENTS: dict[str, Callable[[], Agent]] = {}
T = TypeVar("T", bound=Callable[[], Agent])


def register_agent(name: str) -> Callable[[T], T]:
    def register(agent: T) -> T:
        AGENTS[name] = agent
        return agent

    return register


def make_agent(name: str) -> Agent:
    """A fresh agent for one trajectory; raises UserError with the known names."""
    require_agent(name)
    return CheckedAgent(name, AGENTS[name])


def require_agent(name: str, *, key: str = KEY) -> None:
    if name not in AGENTS:
        raise UserError(
            f"there is no agent {name!r}; known: {', '.join(sorted(AGENTS))}. Register yours with "
            f"@hone.agents.register_agent(name) in the file named by {key}"
        )


def load_agents(path: str, *, key: str = KEY) -> None:
    """Runs a user's Python file, which `key` names, so that its decorators register its agents."""
    run_file(path, key=key)
