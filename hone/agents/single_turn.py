"""The plain agent: one prompt, one answer."""

from __future__ import annotations

from hone.agents.llm import LLM
from hone.agents.registry import register_agent
from hone.agents.trajectory import Trajectory
from hone.data.prompts import Sample


@register_agent("single_turn")
@register_agent("single_turn_agent")  # as rows and command lines written for verl name it
class SingleTurn:
    async def run(self, sample: Sample, llm: LLM) -> Trajectory:
        answer = await llm.generate(sample.prompt_ids)
        return Trajectory(
            prompt_ids=sample.prompt_ids,
            response_ids=answer.token_ids,
            response_mask=[1] * len(answer.token_ids),
            logprobs=answer.logprobs,
            versions=answer.versions,
            stop_reason=answer.stop_reason,
        )
