"""From a prompt to a trajectory, and from trajectories to a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hone.agents import LLM, SingleTurn, Trajectory, compact, load_agents, make_agent, register_agent, to_batch
from hone.data.prompts import Sample
from hone.errors import UserError
from hone.rollout.interface import Completion, Sampling


class Echo:
    """An engine that answers with the numbers 100, 101, ... and keeps what it was asked."""

    def __init__(self, tokens: int = 3, stop_reason: Any = "stop") -> None:
        self.tokens, self.stop_reason = tokens, stop_reason
        self.asked: list[tuple[list[int], Sampling]] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        self.asked.append((list(prompt_ids), sampling))
        ids = [100 + i for i in range(self.tokens)]
        return Completion(ids, [-0.5 * (i + 1) for i in range(self.tokens)], self.stop_reason, [7] * self.tokens)


def sample(uid: str = "a", prompt_ids: Sequence[int] = (5, 6), agent_name: str | None = None) -> Sample:
    return Sample(
        row=0,
        prompt_ids=list(prompt_ids),
        messages=[],
        data_source="sums",
        ground_truth="1",
        extra_info={},
        agent_name=agent_name,
        uid=uid,
    )


def run_single_turn(engine: Echo, sampling: Sampling) -> Trajectory:
    return asyncio.run(SingleTurn().run(sample(), LLM(engine, sampling)))


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_single_turn_is_the_prompt_and_one_answer_all_of_it_sampled(reason):
    engine, sampling = Echo(stop_reason=reason), Sampling(max_tokens=9, temperature=0.3, seed=11)
    trajectory = run_single_turn(engine, sampling)
    assert engine.asked == [([5, 6], sampling)]
    assert trajectory == Trajectory(
        prompt_ids=[5, 6],
        response_ids=[100, 101, 102],
        response_mask=[1, 1, 1],
        logprobs=[-0.5, -1.0, -1.5],
        versions=[7, 7, 7],
        stop_reason=reason,
        turn_rewards=[],
    )


def test_each_call_of_a_trajectory_draws_from_a_stream_of_its_own():
    engine = Echo()
    llm = LLM(engine, Sampling(max_tokens=9, seed=11))

    async def three_turns() -> None:
        await llm.generate([1])
        await llm.generate([1, 2], max_tokens=4)
        await llm.generate([1, 2, 3])

    asyncio.run(three_turns())
    seeds = [s.seed for _, s in engine.asked]
    assert seeds[0] == 11 and len(set(seeds)) == 3
    assert [s.max_tokens for _, s in engine.asked] == [9, 4, 9]


def test_a_batch_aligns_masks_logprobs_and_versions_with_the_tokens_of_prompt_and_response():
    trajectories = [
        Trajectory([5, 6], [100, 101, 9, 102], [1, 1, 0, 1], [-1.0, -2.0, 0.0, -3.0], [4, 4, -1, 5], "stop", 2),
        Trajectory([7], [100], [1], [-0.25], [5], "length"),
        Trajectory([5, 6], [103], [1], [-4.0], [5], "stop"),
    ]
    batch = to_batch(trajectories, [sample("b"), sample("a"), sample("b")])
    assert batch.offsets.tolist() == [0, 6, 8, 11]
    assert batch["input_ids"].tolist() == [5, 6, 100, 101, 9, 102, 7, 100, 5, 6, 103]
    assert batch["response_mask"].tolist() == [0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1]
    assert batch["rollout_logprobs"].tolist() == [0, 0, -1, -2, 0, -3, 0, -0.25, 0, 0, -4]
    assert batch["versions"].tolist() == [-1, -1, 4, 4, -1, 5, -1, 5, -1, -1, 5]
    assert batch["turn_rewards"].tolist() == [0.0] * 11
    assert batch["prompt_length"].tolist() == [2, 1, 2]
    assert batch["truncated"].tolist() == [False, True, False]
    assert batch["num_turns"].tolist() == [2, 1, 1]
    group = batch["group"].tolist()
    assert group[0] == group[2] != group[1]
    assert list(batch["uid"]) == ["b", "a", "b"]
    assert list(batch["data_source"]) == ["sums"] * 3


def test_columns_have_the_types_that_the_engine_and_the_estimators_expect():
    batch = to_batch([Trajectory([5], [6], [1], [-1.0], [0], "stop")], [sample()])
    integers = ("input_ids", "response_mask", "versions", "prompt_length", "group", "num_turns")
    assert {batch[name].dtype for name in integers} == {torch.int64}
    assert batch["rollout_logprobs"].dtype == batch["turn_rewards"].dtype == torch.float32
    assert batch["truncated"].dtype == torch.bool


@pytest.mark.parametrize(
    ("mask", "rewards", "expected"),
    [
        ([1, 1, 1], [0.5], [0, 0, 0.5]),
        ([1, 1, 0, 1], [0.5, 2.0], [0, 0.5, 0, 2.0]),
        ([0, 1, 0, 0, 1, 1, 0], [0.5, 2.0], [0, 0.5, 0, 0, 0, 2.0, 0]),
        ([1, 0, 1, 0, 1], [0.5], [0.5, 0, 0, 0, 0]),
        ([1, 0, 1], [0, 3], [0, 0, 3.0]),
        ([0, 0], [], [0, 0]),
        ([], [], []),
    ],
)
def test_each_turns_reward_stands_on_the_last_token_that_was_sampled_in_it(mask, rewards, expected):
    n = len(mask)
    trajectory = Trajectory([5, 6], [7] * n, mask, [0.0] * n, [0] * n, "stop", turn_rewards=rewards)
    plain = Trajectory([5], [7], [1], [0.0], [0], "stop")
    batch = to_batch([trajectory, plain], [sample("a"), sample("b")])
    assert batch["turn_rewards"].tolist() == [0, 0, *expected, 0, 0]


def test_tuples_and_arrays_make_the_same_batch_as_lists():
    lists = Trajectory([5, 6], [7, 8], [1, 0], [-1.0, 0.0], [0, -1], "stop", turn_rewards=[1.0])
    arrays = Trajectory(
        (5, 6), np.array([7, 8]), np.array([True, False]), (-1.0, 0.0), np.array([0, -1]), "stop", turn_rewards=(1.0,)
    )  # type: ignore[arg-type]
    first, second = (to_batch([t], [sample()]) for t in (lists, compact(arrays, "")))
    assert all(torch.equal(first[name], second[name]) for name in first.tokens)


def test_every_trajectory_gets_a_fresh_agent(agents):
    @register_agent("counting")
    class Counting:
        def __init__(self) -> None:
            self.runs = 0

        async def run(self, sample: Sample, llm: LLM) -> Trajectory:
            self.runs += 1
            return Trajectory([self.runs], [], [], [], [], "stop")

    for _ in range(2):
        assert asyncio.run(make_agent("counting").run(sample(), LLM(Echo(), Sampling(max_tokens=1)))).prompt_ids == [1]


def test_an_unknown_agent_is_named_with_the_known_ones_and_where_to_add_one():
    with pytest.raises(UserError, match="no agent 'chess'; known: .*single_turn.*agent_loop_path"):
        make_agent("chess")


def test_turns_that_an_agent_does_not_count_are_the_runs_of_1_in_its_mask():
    masks = [[1, 1, 0, 1], [0, 1, 1], [0, 0], []]
    counted = [
        Trajectory([1], [2] * len(mask), mask, [0.0] * len(mask), [0] * len(mask), "stop", turns)
        for mask, turns in [*((mask, None) for mask in masks), (masks[0], 5)]
    ]
    assert to_batch(counted, [sample()] * 5)["num_turns"].tolist() == [2, 1, 0, 0, 5]


def test_a_users_file_registers_agents(agents, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from hone.agents import Trajectory, register_agent\n"
        "@register_agent('parrot')\n"
        "class Parrot:\n"
        "    async def run(self, sample, llm):\n"
        "        ids = sample.prompt_ids\n"
        "        return Trajectory(ids, ids, [0] * len(ids), [0.0] * len(ids), [-1] * len(ids), 'stop')\n"
    )
    load_agents(str(file))
    trajectory = asyncio.run(make_agent("parrot").run(sample(), LLM(Echo(), Sampling(max_tokens=2))))
    assert trajectory.response_ids == [5, 6]


def test_a_missing_agent_file_is_named_with_its_key(tmp_path):
    with pytest.raises(UserError, match="rollout.agent.agent_loop_path=.*nowhere.py: there is no such file"):
        load_agents(str(tmp_path / "nowhere.py"))


@pytest.mark.parametrize("text", ["import no_such_package", "def f(:", "1 / 0"])
def test_a_mistake_inside_an_agents_file_is_one_message(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text + "\n")
    with pytest.raises(UserError, match=r"agent_loop_path=.*mine\.py fails when it is loaded"):
        load_agents(str(path))
