"""Agents run side by side against one engine; each trajectory comes back once, and a failure ends them all."""

from __future__ import annotations

import asyncio

import pytest

from hone.agents import LLM, Trajectory, register_agent
from hone.agents.registry import AGENTS
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rollout.hf import HFEngine
from hone.rollout.interface import Sampling
from hone.workers.rollout import RolloutTask, TrajectoryStream, end_tokens
from tests.models_of_families import random_ids, tiny

LENGTHS = [4, 9, 2, 7, 1]


class Words:
    def decode(self, ids, **options) -> str:
        return " ".join(map(str, ids))


def make_stream(**options) -> TrajectoryStream:
    return TrajectoryStream(HFEngine(tiny("qwen3"), eos_token_ids=[1], max_model_len=64, **options), Words())


def tasks(n: int = 3, *, agents: dict[int, str] | None = None, max_tokens: int = 12) -> list[RolloutTask]:
    """`n` samples of each prompt; `agents` names those of single tasks."""
    made = []
    for row, ids in enumerate(random_ids(LENGTHS).split(LENGTHS)):
        for _ in range(n):
            index = len(made)
            name = (agents or {}).get(index)
            sample = Sample(row, ids.tolist(), [], "sums", None, {}, name, uid=str(row))
            made.append(RolloutTask(index, sample, Sampling(max_tokens=max_tokens, seed=index)))
    return made


@pytest.fixture
def agents():
    before = dict(AGENTS)
    cancelled: list[str] = []

    @register_agent("failing")
    class Failing:
        async def run(self, sample: Sample, llm: LLM) -> Trajectory:
            await llm.generate(sample.prompt_ids)
            raise RuntimeError("the tool broke")

    @register_agent("patient")
    class Patient:
        """Waits for ever, and notes that it was told to stop."""

        async def run(self, sample: Sample, llm: LLM) -> Trajectory:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(sample.uid)
                raise
            raise AssertionError

    yield cancelled
    AGENTS.clear()
    AGENTS.update(before)


@pytest.mark.parametrize("slots", [2, 1024])
def test_every_task_comes_back_once_under_its_own_index(slots):
    wanted = tasks()
    found = dict(make_stream(max_num_seqs=slots)(wanted))
    assert sorted(found) == list(range(len(wanted)))
    for task in wanted:
        trajectory = found[task.index]
        assert trajectory.prompt_ids.tolist() == task.sample.prompt_ids
        assert 1 <= len(trajectory.response_ids) <= 12
        assert trajectory.text == " ".join(map(str, trajectory.response_ids)) and trajectory.num_turns == 1


def test_order_of_arrival_and_number_of_slots_change_no_trajectory():
    few, many = (dict(make_stream(max_num_seqs=slots)(tasks())) for slots in (2, 1024))
    for index, trajectory in many.items():
        assert few[index].response_ids.tolist() == trajectory.response_ids.tolist()
        assert few[index].logprobs == pytest.approx(trajectory.logprobs, abs=1e-5)


@pytest.mark.usefixtures("token_by_token")
def test_short_trajectories_are_handed_out_while_long_ones_still_run():
    stream = make_stream()
    long, short = tasks(1, max_tokens=50)[0], tasks(1, max_tokens=1)[1]
    finished = stream([long, short])
    index, _ = next(finished)
    assert index == short.index
    assert len(stream.engine.running) == 1
    assert [index for index, _ in finished] == [long.index]


def test_an_agents_error_surfaces_and_cancels_the_others(agents):
    stream = make_stream()
    with pytest.raises(UserError, match=r"agent 'failing' .*RuntimeError: the tool broke \(.*line \d+\)"):
        list(stream(tasks(agents={4: "failing", 0: "patient", 8: "patient"})))
    assert sorted(agents) == ["0", "2"]
    again = dict(stream(tasks()))  # and nothing of it is left in the engine
    plain = dict(make_stream()(tasks()))
    assert {i: t.text for i, t in again.items()} == {i: t.text for i, t in plain.items()}
    assert not stream.engine.running and not stream.engine.waiting


def test_an_unknown_agent_of_a_row_is_the_users_error():
    with pytest.raises(UserError, match="there is no agent 'chess'"):
        list(make_stream()(tasks(agents={2: "chess"})))


def test_a_driver_that_stops_listening_cancels_what_still_runs(agents):
    stream = make_stream()
    finished = stream(tasks(agents={0: "patient"}))
    next(finished)
    finished.close()
    assert agents == ["0"]


def test_no_tasks_give_no_trajectories():
    assert list(make_stream()([])) == []


class EndsWith:
    def __init__(self, eos_token_id):
        self.eos_token_id = eos_token_id


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [([3, 4], 5, 6, {3, 4, 5, 6}), (None, 1, 1, {1}), (None, None, None, set()), (0, None, None, {0})],
)
def test_all_end_tokens_that_anything_names_end_a_response(generation, config, tokenizer, expected):
    model = EndsWith(None)
    model.generation_config, model.config = EndsWith(generation), EndsWith(config)
    assert end_tokens(model, EndsWith(tokenizer)) == expected
