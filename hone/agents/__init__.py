"""What happens between a prompt and a finished trajectory."""

from hone.agents.llm import LLM, Agent
from hone.agents.registry import load_agents, make_agent, register_agent
from hone.agents.single_turn import SingleTurn
from hone.agents.trajectory import Trajectory, compact, to_batch

__all__ = [
    "LLM",
    "Agent",
    "SingleTurn",
    "Trajectory",
    "compact",
    "load_agents",
    "make_agent",
    "register_agent",
    "to_batch",
]
