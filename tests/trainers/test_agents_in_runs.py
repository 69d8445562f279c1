"""Agents of the users in whole runs: responses without a token, and mistakes that end a run in one message."""

from __future__ import annotations

import math

import pytest

from hone.errors import UserError
from tests.trainers.runs import ACTOR, ROLLOUT, Run, Stage, same_weights

AGENTS = """
from hone.agents import Trajectory, register_agent


@register_agent("silent")
class Silent:
    async def run(self, sample, llm):
        return Trajectory(sample.prompt_ids, [], [], [], [], "stop")


@register_agent("tool_only")
class ToolOnly:
    async def run(self, sample, llm):
        return Trajectory(sample.prompt_ids, [7, 8], [0, 0], [0.0, 0.0], [-1, -1], "stop")


@register_agent("sometimes_silent")
class SometimesSilent:
    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        n = len(answer.token_ids) if sum(answer.token_ids) % 2 else 0
        return Trajectory(sample.prompt_ids, answer.token_ids[:n], [1] * n, answer.logprobs[:n], answer.versions[:n],
                          answer.stop_reason)


@register_agent("short_mask")
class ShortMask:
    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        return Trajectory(sample.prompt_ids, answer.token_ids, [1], answer.logprobs, answer.versions, "stop")


@register_agent("nothing")
class Nothing:
    async def run(self, sample, llm):
        await llm.generate(sample.prompt_ids)


@register_agent("promptless")
class Promptless:
    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        n = len(answer.token_ids)
        return Trajectory([], answer.token_ids, [1] * n, answer.logprobs, answer.versions, "stop")


@register_agent("raising")
class Raising:
    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        return answer.text


@register_agent("generous")
class Generous:
    async def run(self, sample, llm):
        answer = await llm.generate(sample.prompt_ids)
        n = len(answer.token_ids)
        return Trajectory(sample.prompt_ids, answer.token_ids, [1] * n, answer.logprobs, answer.versions, "stop",
                          turn_rewards=[0.5, 0.5])
"""


def run(stage: Stage, agent: str, name: str, *more: str, estimator: str = "grpo") -> Run:
    path = stage.directory / "agents.py"
    path.write_text(AGENTS)
    keys = (f"{ROLLOUT}.agent.agent_loop_path={path}", f"{ROLLOUT}.agent.default_agent_loop={agent}")
    return stage.run_ppo(name, *keys, *more, estimator=estimator)


KL = ("algorithm.use_kl_in_reward=True", f"{ACTOR}.use_kl_loss=True")
CASES = [
    ("grpo", ()),
    ("gae", ()),
    ("reinforce_plus_plus", KL),
    ("reinforce_plus_plus_baseline", ()),
    ("remax", ()),
    ("rloo", ("algorithm.rollout_is=True", "algorithm.rollout_is_level=sequence")),
    ("grpo_passk", ("algorithm.use_pf_ppo=True",)),
    ("opo", ("reward_model.overlong_buffer.enable=True", "reward_model.overlong_buffer.len=4")),
    ("gpg", (f"{ACTOR}.policy_loss.loss_mode=clip_cov",)),
    ("reward", (f"{ACTOR}.policy_loss.loss_mode=kl_cov", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean")),
    ("none", (f"{ACTOR}.ppo_mini_batch_size=4", "algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=full")),
]


@pytest.mark.parametrize("agent", ["silent", "tool_only"])
@pytest.mark.parametrize(("estimator", "more"), CASES)
def test_a_step_without_a_token_to_train_changes_nothing(
    stage: Stage, agent: str, estimator: str, more: tuple[str, ...]
) -> None:
    one = ("trainer.total_training_steps=1", "trainer.save_freq=1")
    found = run(stage, agent, "run", *one, *more, estimator=estimator)
    untouched = stage.run_ppo("untouched", *one, f"{ACTOR}.optim.lr=0", f"{ACTOR}.optim.weight_decay=0")
    assert same_weights(found.weights(1), untouched.weights(1))
    (line,) = found.results()
    assert all(math.isfinite(value) for value in line.values())
    assert line["actor/grad_norm"] == line.get("actor/pg_loss", 0.0) == 0.0
    assert line["response_length/max"] == (0.0 if agent == "silent" else 2.0)


def test_a_step_with_some_responses_empty_trains_on_the_others(stage: Stage) -> None:
    found = run(stage, "sometimes_silent", "run")
    assert any(line["response_length/min"] == 0.0 < line["response_length/max"] for line in found.lines())
    assert all(math.isfinite(value) for line in found.results() for value in line.values())


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("short_mask", r"agent 'short_mask' \(.*agents\.py\): .*response_mask 1, logprobs"),
        ("nothing", r"agent 'nothing' \(.*agents\.py\) returned None"),
        ("promptless", r"agent 'promptless' \(.*agents\.py\): .*prompt_ids is empty"),
        ("raising", r"agent 'raising' \(.*\) failed: AttributeError: .*'text'.* \(.*agents\.py, line 51\)"),
        ("generous", r"agent 'generous' \(.*agents\.py\): 2 turn_rewards for 1 turns"),
    ],
)
def test_a_mistake_in_an_agent_ends_the_run_in_one_message(stage: Stage, agent: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(stage, agent, "run")
