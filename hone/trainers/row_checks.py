"""Whether a run can use a row: its agent, its tools and its scorer are known before any model is loaded."""

from __future__ import annotations

from collections.abc import Callable

from hone.agents import Surroundings, load_agents, load_surroundings
from hone.agents.registry import require_agent
from hone.config.conversations import AGENTS as CONVERSING
from hone.config.conversations import ROLLOUT, rollout_of
from hone.config.schema import GenerationConfig, PPOConfig
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rewards.scorers import check_scorable


def row_check(
    *, scored_by_rules: bool, surroundings: Surroundings | None = None, place: str = ROLLOUT["ppo"]
) -> Callable[[Sample], None]:
    """Raises UserError for a row with an unknown agent, for tools or interactions that there are not or, where rules
    score, for one that they cannot score. `surroundings` are those of conversations; None: there are none. `place` is
    the section of the rollout."""

    def check(sample: Sample) -> None:
        if sample.agent_name is not None:
            require_agent(sample.agent_name, key=f"{place}.agent.agent_loop_path")
        if surroundings is not None:
            surroundings.check_row(sample)
        elif sample.agent_name in CONVERSING:
            raise UserError(
                f"agent_name is {sample.agent_name!r}, which converses: that needs {place}.multi_turn.enable=True. Set "
                "it, or remove the column."
            )
        if scored_by_rules:
            check_scorable(sample.data_source, sample.ground_truth)

    return check


def load_conversations(config: PPOConfig | GenerationConfig) -> Surroundings:
    """Registers the agents of the user's file and loads those who answer the model; raises UserError for a mistake in
    them, and if the default agent is none of those there are."""
    rollout, place = rollout_of(config)
    key = f"{place}.agent.agent_loop_path"
    if rollout.agent.agent_loop_path is not None:
        load_agents(rollout.agent.agent_loop_path, key=key)
    require_agent(rollout.agent.default_agent_loop, key=key)
    return load_surroundings(rollout.multi_turn, f"{place}.multi_turn")
