"""What happens between a prompt and a finished trajectory."""

from hone.agents.interactions import Interaction
from hone.agents.llm import LLM, Agent
from hone.agents.multi_turn import MultiTurn, Surroundings, load_surroundings
from hone.agents.registry import load_agents, make_agent, register_agent
from hone.agents.reply import Reply
from hone.agents.single_turn import SingleTurn
from hone.agents.tool_agent import ToolAgent
from hone.agents.tools import Tool
from hone.agents.trajectory import Trajectory, compact, to_batch

__all__ = [
    "LLM",
    "Agent",
    "Interaction",
    "MultiTurn",
    "Reply",
    "SingleTurn",
    "Surroundings",
    "Tool",
    "ToolAgent",
    "Trajectory",
    "compact",
    "load_agents",
    "load_surroundings",
    "make_agent",
    "register_agent",
    "to_batch",
]
