"""Rewards that an agent gives on the way: each on the last token of its turn, and in the sum that groups compare."""

from __future__ import annotations

import math

import pytest
import torch

from hone.algorithms import FixedKL
from hone.batch import Batch
from hone.config.schema.algorithm import AlgorithmConfig, FilterGroups, PfPpo
from hone.config.schema.reward import OverlongBuffer
from hone.rewards import Reward
from hone.trainers.advantages import add_advantages, estimator_of
from hone.trainers.dynamic_sampling import sample_informative
from hone.trainers.filtration import redraw
from hone.trainers.metrics import batch_metrics
from hone.trainers.scoring import Scoring
from tests.trainers.ragged import random_batch
from tests.trainers.runs import ACTOR, ROLLOUT, Stage, difference, same_weights
from tests.trainers.test_dynamic_sampling import sampled

AGENT = """
from hone.agents import Trajectory, register_agent


@register_agent("two_turns")
class TwoTurns:
    '''Three tokens, two of a tool, and up to three more; rewards depend on what was sampled.'''

    async def run(self, sample, llm):
        first = await llm.generate(sample.prompt_ids, max_tokens=3)
        tool = [5, 6]
        second = await llm.generate([*sample.prompt_ids, *first.token_ids, *tool], max_tokens=3)
        sampled, inserted = [1] * len(first.token_ids), [0] * len(tool)
        return Trajectory(
            sample.prompt_ids,
            [*first.token_ids, *tool, *second.token_ids],
            [*sampled, *inserted, *[1] * len(second.token_ids)],
            [*first.logprobs, *[0.0] * len(tool), *second.logprobs],
            [*first.versions, *[-1] * len(tool), *second.versions],
            second.stop_reason,
            num_turns=2,
            turn_rewards=self.rewards(first, second),
        )

    def rewards(self, first, second):
        return [sum(first.token_ids) % 5 / 10, -(sum(second.token_ids) % 3)]


@register_agent("unrewarded")
class Unrewarded(TwoTurns):
    def rewards(self, first, second):
        return []
"""


def agent(stage: Stage, name: str) -> list[str]:
    path = stage.directory / "agent.py"
    path.write_text(AGENT)
    return [f"{ROLLOUT}.agent.agent_loop_path={path}", f"{ROLLOUT}.agent.default_agent_loop={name}",
            f"{ROLLOUT}.max_model_len=120", "trainer.total_training_steps=1"]  # fmt: skip


def by_hand(row: Batch) -> list[float]:
    """A row's rewards as the agent and the reward function give them."""
    places = [i for i, m in enumerate(row["response_mask"].tolist()) if m]
    turns = [[i for i in places if i < places[0] + 3], [i for i in places if i >= places[0] + 5]]
    first, second = ([int(row["input_ids"][i]) for i in turn] for turn in turns)
    expected = [0.0] * row.num_tokens
    expected[turns[0][-1]] += sum(first) % 5 / 10
    expected[turns[1][-1]] += -(sum(second) % 3) + float(row["score"][0])
    return expected


def test_each_turn_is_rewarded_at_its_end_and_the_last_also_by_the_score(stage: Stage, updates: list[Batch]) -> None:
    more = [f"{ROLLOUT}.ignore_eos=True", f"trainer.rollout_data_dir={stage.directory}/run/rollout"]
    run = stage.run_ppo("run", *agent(stage, "two_turns"), *more, estimator="none")
    rows = [piece.slice(i, i + 1) for piece in updates for i in range(len(piece))]
    assert len(rows) == 8
    for row in rows:
        assert row["advantages"].tolist() == pytest.approx(by_hand(row), abs=1e-6)
    sums = [sum(by_hand(row)) for row in rows]
    line = run.lines()[0]
    assert line["critic/rewards/mean"] == pytest.approx(sum(sums) / 8, abs=1e-6)
    on_the_way = [total - float(row["score"][0]) for total, row in zip(sums, rows)]
    assert line["critic/turn_rewards/mean"] == pytest.approx(sum(on_the_way) / 8, abs=1e-6)
    dumped = [sum(found["turn_rewards"]) for found in run.lines("rollout/1.jsonl")]
    assert sorted(dumped) == pytest.approx(sorted(on_the_way), abs=1e-6)
    assert line["critic/turn_rewards/max"] == pytest.approx(max(on_the_way), abs=1e-6)


@pytest.mark.parametrize("estimator", ["grpo", "gae", "reinforce_plus_plus", "remax"])
def test_rewards_on_the_way_change_what_is_trained(stage: Stage, estimator: str) -> None:
    change = [f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.1"]
    plain = stage.run_ppo("plain", *agent(stage, "unrewarded"), *change, estimator=estimator)
    run = stage.run_ppo("run", *agent(stage, "two_turns"), *change, estimator=estimator)
    assert difference(plain.weights(1), run.weights(1)) > 1e-6
    assert all(math.isfinite(value) for line in run.lines() for value in line.values())
    assert not any(name.startswith("critic/turn_rewards") for name in plain.lines()[0])


def test_an_agent_without_rewards_on_the_way_trains_as_before(stage: Stage) -> None:
    more = agent(stage, "unrewarded")
    assert same_weights(stage.run_ppo("a", *more).weights(1), stage.run_ppo("b", *more).weights(1))


def rewarded(seed: int) -> Batch:
    batch = random_batch(6, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    here = batch["response_mask"].bool() & (torch.rand(batch.num_tokens, generator=draw) > 0.5)
    return batch.with_tokens(turn_rewards=torch.where(here, torch.randn(batch.num_tokens, generator=draw), 0.0))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kl", [False, True])
def test_rewards_on_the_way_are_added_to_the_scores_and_the_kl(seed: int, kl: bool) -> None:
    batch = rewarded(seed)
    config = AlgorithmConfig.model_validate({"adv_estimator": "none", "use_kl_in_reward": kl})
    without = batch.with_tokens(turn_rewards=torch.zeros(batch.num_tokens))
    found, plain = (add_advantages(b, config, estimator_of(config), FixedKL(0.3))[0] for b in (batch, without))
    torch.testing.assert_close(found["rewards"] - plain["rewards"], batch["turn_rewards"])


def test_group_estimators_compare_the_sums() -> None:
    batch = rewarded(0)
    config = AlgorithmConfig.model_validate({"adv_estimator": "rloo"})
    found, _ = add_advantages(batch, config, estimator_of(config), FixedKL(0.0))
    sums = [
        float(batch["score"][i]) + float(batch.slice(i, i + 1)["turn_rewards"].sum())
        if batch.slice(i, i + 1)["response_mask"].any() else None
        for i in range(6)
    ]  # fmt: skip
    for i, other in ((0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)):
        row = found.slice(i, i + 1)
        mine, theirs = sums[i], sums[other]
        expected = 0.0 if mine is None or theirs is None else mine - theirs
        tokens = row["advantages"][row["response_mask"].bool()]
        torch.testing.assert_close(tokens, torch.full_like(tokens, expected))


def test_policy_filtration_draws_by_the_sums() -> None:
    batch = random_batch(4, seed=0).with_rows(place=torch.arange(4), score=torch.tensor([0.0, 0.0, 0.0, 1.0]))
    ends = torch.zeros(batch.num_tokens)
    ends[batch.offsets[1] - 1], ends[batch.offsets[4] - 1] = 2.0, -1.0
    drawn = [redraw(batch.with_tokens(turn_rewards=ends), PfPpo(), seed=0, step=step)[0]["place"] for step in range(20)]
    assert set(torch.cat(drawn).tolist()) == {0}


def test_dynamic_sampling_looks_at_the_sums_of_the_whole_reward_only() -> None:
    def drawn() -> object:
        batch = sampled([Reward(1.0), Reward(1.0)], [Reward(0.0), Reward(1.0)])
        batch.trajectories[0].turn_rewards, batch.trajectories[3].turn_rewards = [0.5], [-1.0]
        return batch

    for metric, expected in (("seq_reward", "0"), ("score", "1")):
        scoring = Scoring(OverlongBuffer(), 8)
        chosen, _ = sample_informative(drawn, FilterGroups(metric=metric), scoring, prompts=1, n=2)  # type: ignore[arg-type]
        assert chosen.samples[0].uid == expected


def test_a_greedy_answers_rewards_on_the_way_are_part_of_the_baseline() -> None:
    greedy = sampled([Reward(0.25)], [Reward(1.0)])
    greedy.trajectories[0].turn_rewards = [0.5]
    batch = random_batch(2, seed=0).with_rows(uid=["0", "1"])
    found, _ = Scoring(OverlongBuffer(), 8).add_greedy_rewards(batch, greedy)
    assert found["greedy_reward"].tolist() == [0.75, 1.0]


def test_metrics_name_them_when_there_are_any() -> None:
    draw = torch.Generator().manual_seed(0)
    batch = rewarded(1)
    batch = batch.with_tokens(**{name: torch.randn(batch.num_tokens, generator=draw)
                                 for name in ("rewards", "advantages", "returns")})  # fmt: skip
    sums = [float(batch.slice(i, i + 1)["turn_rewards"].sum()) for i in range(6)]
    metrics = batch_metrics(batch, 6)
    found = [metrics[f"critic/turn_rewards/{kind}"] for kind in ("mean", "max", "min")]
    assert found == pytest.approx([sum(sums) / 6, max(sums), min(sums)])
    without = batch_metrics(batch.with_tokens(turn_rewards=torch.zeros(batch.num_tokens)), 6)
    assert not any(name.startswith("critic/turn_rewards") for name in without)
