"""An agent's mistakes are one message each that names the agent and its file."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hone.agents import LLM, Trajectory, load_agents, make_agent, register_agent
from hone.agents.checks import _warn_untrainable
from hone.agents.registry import AGENTS
from hone.errors import UserError
from hone.rollout.interface import Sampling
from tests.agents.test_agents import Echo, sample

GOOD = Trajectory([5, 6], [7, 8, 9], [1, 0, 1], [-1.0, 0.0, -2.0], [0, -1, 0], "stop", 2, [0.5, 1.0])


def run(name: str, engine: Any = None) -> Trajectory:
    return asyncio.run(make_agent(name).run(sample(), LLM(engine or Echo(), Sampling(max_tokens=3), 12)))


@pytest.fixture
def returning(agents: dict[str, Any]) -> Any:
    """Runs an agent that returns the given thing."""

    def of(result: Any) -> Trajectory:
        @register_agent("mine")
        class Mine:
            async def run(self, sample: Any, llm: LLM) -> Any:
                return result

        return run("mine")

    return of


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"response_ids": [], "response_mask": [], "logprobs": [], "versions": [], "turn_rewards": []},
        {"response_ids": (7, 8, 9), "response_mask": np.array([1, 0, 1]), "logprobs": np.zeros(3)},
        {"response_mask": [True, False, True], "logprobs": [0, 0, 0], "turn_rewards": []},
        {"response_mask": [0, 0, 0], "turn_rewards": []},
        {"turn_rewards": [1]},
        {"num_turns": None},
    ],
)
def test_a_trajectory_that_fits_together_is_handed_on(returning: Any, changes: dict[str, Any]) -> None:
    given = replace(GOOD, **changes)
    assert returning(given) is given


WRONG = [
    ({"response_mask": [1, 0]}, r"response_ids 3, response_mask 2, logprobs 3, versions 3"),
    ({"logprobs": []}, r"response_ids 3, response_mask 3, logprobs 0, versions 3"),
    ({"versions": [0] * 4}, r"versions 4"),
    ({"prompt_ids": []}, r"prompt_ids is empty"),
    ({"prompt_ids": None}, r"prompt_ids is None: expected a list of token ids"),
    ({"prompt_ids": "text"}, r"prompt_ids is 'text': expected a list of token ids"),
    ({"response_ids": [7, "8", 9]}, r"response_ids has '8' at place 1: expected a list of token ids"),
    ({"response_ids": [7, -8, 9]}, r"response_ids has -8 at place 1"),
    ({"response_ids": [7, 8.0, 9]}, r"response_ids has 8.0 at place 1"),
    ({"response_mask": [1, 2, 0]}, r"response_mask has 2 at place 1: expected a list of 0 and 1"),
    ({"logprobs": [None, 0.0, 0.0]}, r"logprobs has None at place 0: expected a list of finite numbers"),
    ({"logprobs": [-1.0, 0.0, float("nan")]}, r"logprobs has nan at place 2: expected a list of finite numbers"),
    ({"logprobs": [-float("inf"), 0.0, 0.0]}, r"logprobs has -inf at place 0"),
    ({"turn_rewards": [1e39]}, r"turn_rewards has 1e\+39 at place 0"),
    ({"prompt_ids": [5, 12]}, r"prompt_ids has 12: expected token ids below 12"),
    ({"response_ids": [7, 99, 9]}, r"response_ids has 99: expected token ids below 12"),
    ({"stop_reason": "tool"}, r"stop_reason is 'tool': expected 'stop' or 'length'"),
    ({"stop_reason": None}, r"stop_reason is None"),
    (
        {"response_ids": [7] * 4, "response_mask": [1, 0, 0, 1], "logprobs": [0.0] * 4, "versions": [0] * 4},
        r"4 response tokens, sampled and inserted ones together: expected at most 3 \(data\.max_response_length\)",
    ),
    ({"versions": ["1", 1, 1]}, r"versions has '1' at place 0: expected a list of integers"),
    ({"turn_rewards": [0.5, float("nan")]}, r"turn_rewards has nan at place 1: expected a list of finite numbers"),
    ({"turn_rewards": [0.1, 0.2, 0.3]}, r"3 turn_rewards for 2 turns \(runs of 1 in response_mask\)"),
    ({"num_turns": "2"}, r"num_turns is '2': expected an integer"),
    ({"turn_rewards": 1.0}, r"turn_rewards is 1.0: expected a list of finite numbers"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_trajectory_that_does_not_fit_together_is_refused(
    returning: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=rf"^agent 'mine' \({re.escape(__file__)}\): .*{message}"):
        returning(replace(GOOD, **changes))


def test_an_agent_that_samples_nothing_is_noticed_once(returning: Any, caplog: pytest.LogCaptureFixture) -> None:
    _warn_untrainable.cache_clear()
    for _ in range(3):
        returning(replace(GOOD, response_mask=[0, 0, 0], turn_rewards=[]))
    (message,) = caplog.messages
    assert message.startswith("agent 'mine' ") and "without a sampled token" in message


@pytest.mark.parametrize("result", [None, {"response_ids": []}, [GOOD], "text"])
def test_something_else_than_a_trajectory_is_refused(returning: Any, result: Any) -> None:
    with pytest.raises(
        UserError, match=rf"^agent 'mine' .*returned .*{type(result).__name__}.*hone\.agents\.Trajectory"
    ):
        returning(result)


AGENT = """
from hone.agents import Trajectory, register_agent

@register_agent("raising")
class Raising:
    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        return self.parsed(answer)

    def parsed(self, answer):
        return {}["tool"]

@register_agent("unmade")
class Unmade:
    def __init__(self):
        self.tool = open("/no/such/tool")

@register_agent("plain")
class Plain:
    def run(self, sample, llm):
        return Trajectory(sample.prompt_ids, [], [], [], [], "stop")

@register_agent("talking")
class Talking:
    async def run(self, sample, llm):
        return await llm.generate("a text")

@register_agent("silent")
class Silent:
    async def run(self, sample, llm):
        return await llm.generate([])

@register_agent("foreign")
class Foreign:
    async def run(self, sample, llm):
        return await llm.generate([5, 12])

@register_agent("leaving")
class Leaving:
    async def run(self, sample, llm):
        exit(0)
"""
RAISING = [
    ("raising", r"agent 'raising' \(.*mine\.py\) failed: KeyError: 'tool' \(.*mine\.py, line 11\)"),
    ("unmade", r"agent 'unmade' \(.*mine\.py\) failed: FileNotFoundError: .*/no/such/tool.* \(.*mine\.py, line 16\)"),
    ("plain", r"agent 'plain' .*async def run"),
    ("talking", r"agent 'talking' .*llm\.generate.*list of token ids.*'a text'.*line 26"),
    ("silent", r"agent 'silent' .*llm\.generate.*at least one.*line 31"),
    ("foreign", r"agent 'foreign' .*llm\.generate.*below 12, not 12.*line 36"),
    ("leaving", r"agent 'leaving' .*called exit: SystemExit: 0 \(.*mine\.py, line 41\)"),
]


@pytest.mark.parametrize(("name", "message"), RAISING)
def test_what_an_agent_of_the_users_raises_names_the_line(
    agents: dict[str, Any], tmp_path: Path, name: str, message: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(AGENT)
    load_agents(str(path))
    with pytest.raises(UserError, match=message) as caught:
        run(name)
    assert (caught.value.__cause__ is None) == (name == "plain")


class Broken(Echo):
    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Any:
        raise MemoryError("no room for the cache")


def test_a_fault_of_the_engine_is_no_fault_of_the_agent(agents: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(AGENT)
    load_agents(str(path))
    for name in ("raising", "single_turn"):
        with pytest.raises(MemoryError, match="no room"):
            run(name, Broken())


def test_a_mistake_that_is_one_message_already_stays_as_it_is(agents: dict[str, Any]) -> None:
    @register_agent("careful")
    class Careful:
        async def run(self, sample: Any, llm: LLM) -> Trajectory:
            raise UserError("row 3: no tool")

    assert "careful" in AGENTS
    with pytest.raises(UserError, match=r"^row 3: no tool$"):
        run("careful")


def test_a_prompt_that_is_longer_than_planned_is_said_once(
    agents: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    @register_agent("long")
    class Long:
        async def run(self, sample: Any, llm: LLM) -> Trajectory:
            return replace(GOOD, prompt_ids=[5] * 6)

    def returned(max_model_len: int) -> Trajectory:
        llm = LLM(Echo(), Sampling(max_tokens=3), 12, max_model_len=max_model_len)
        return asyncio.run(make_agent("long").run(sample(), llm))

    assert len(returned(9).prompt_ids) == 6 and not caplog.messages
    for _ in range(2):
        assert len(returned(8).prompt_ids) == 6
    (said,) = caplog.messages
    assert "'long'" in said and "more than the 5 tokens" in said and "data.max_prompt_length" in said
