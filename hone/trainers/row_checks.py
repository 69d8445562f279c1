"""Whether a run can use a row: its agent, its tools and its scorer are known before any model is loaded."""

from __future__ import annotations

from collections.abc import Callable

from hone.agents import Surroundings
from hone.agents.registry import load_agents, require_agent
from hone.config.conversations import AGENTS as CONVERSING
from hone.config.schema.rollout import AgentConfig
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rewards.scorers import check_scorable


def row_check(*, scored_by_rules: bool, surroundings: Surroundings | None = None) -> Callable[[Sample], None]:
    """Raises UserError for a row with an unknown agent, for tools or interactions that there are not or, where rules
    score, for one that they cannot score. `surroundings` are those of conversations; None: there are none."""

    def check(sample: Sample) -> None:
        if sample.agent_name is not None:
            require_agent(sample.agent_name)
        if surroundings is not None:
            surroundings.check_row(sample)
        elif sample.agent_name in CONVERSING:
            raise UserError(
                f"agent_name is {sample.agent_name!r}, which converses: that needs `hone ppo` with "
                "actor_rollout_ref.rollout.multi_turn.enable=True. Set it, or remove the column."
            )
        if scored_by_rules:
            check_scorable(sample.data_source, sample.ground_truth)

    return check


def load_own_agents(agent: AgentConfig) -> None:
    """Registers the agents of the user's file; raises UserError if the default agent is none of those there are."""
    if agent.agent_loop_path is not None:
        load_agents(agent.agent_loop_path)
    require_agent(agent.default_agent_loop)
