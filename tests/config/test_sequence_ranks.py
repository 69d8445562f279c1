"""Ranks that share sequences: how many there may be, what they need, and what is counted per group of them."""

from __future__ import annotations

import pytest

from hone.config import load
from tests.config.test_check import ACTOR, ROLLOUT, Runnable, problems_of

REF = "actor_rollout_ref.ref"
SEQUENCE_RANKS = "ulysses_sequence_parallel_size"
PACKED = ["actor_rollout_ref.model.use_remove_padding=True", "critic.model.use_remove_padding=True"]
FOUR = ["trainer.n_gpus_per_node=4", *PACKED]


@pytest.mark.parametrize("section", [ACTOR, "critic", REF])
def test_ranks_that_share_sequences_divide_the_ranks_and_pack(runnable: Runnable, section: str) -> None:
    base, key = [*runnable["ppo"], f"{ACTOR}.use_kl_loss=True"], f"{section}.{SEQUENCE_RANKS}"
    for size in (1, 2, 4):
        load("ppo", [*base, *FOUR, f"{key}={size}"])
    for ranks, size in ((4, 3), (4, 8), (1, 2)):
        (problem,) = problems_of([*base, *PACKED, f"trainer.n_gpus_per_node={ranks}", f"{key}={size}"])
        assert problem.key == key and f"{size} does not divide the {ranks} rank(s)" in problem.wrong
    (problem,) = problems_of([*base, "trainer.n_gpus_per_node=4", f"{key}=2"])
    assert problem.key == key and "use_remove_padding=True" in problem.fix


def test_a_role_that_does_not_exist_shares_nothing(runnable: Runnable) -> None:
    argv = [f"critic.{SEQUENCE_RANKS}=3", f"{REF}.{SEQUENCE_RANKS}=3", "algorithm.adv_estimator=grpo"]
    load("ppo", [*runnable["ppo"], *argv])


@pytest.mark.parametrize(
    "exact",
    [[f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"],
     ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=full"]],
)  # fmt: skip
def test_the_exact_kl_needs_policy_and_reference_shared_alike(runnable: Runnable, exact: list[str]) -> None:
    argv = [*runnable["ppo"], *FOUR, *exact, f"{ACTOR}.{SEQUENCE_RANKS}=2"]
    load("ppo", argv)
    (problem,) = problems_of([*argv, f"{REF}.{SEQUENCE_RANKS}=4"])
    assert problem.key == f"{REF}.{SEQUENCE_RANKS}" and "4 differs from the actor's 2" in problem.wrong


def test_ranks_that_share_sequences_take_trajectories_together(runnable: Runnable) -> None:
    argv = [*runnable["ppo"], *FOUR, "algorithm.adv_estimator=grpo", "data.train_batch_size=1", f"{ROLLOUT}.n=2"]
    argv += [f"{ACTOR}.ppo_mini_batch_size=1", f"{ACTOR}.ppo_micro_batch_size=8", f"{ACTOR}.use_dynamic_bsz=True"]
    argv += ["data.max_prompt_length=500", "data.max_response_length=501", f"{ACTOR}.ppo_max_token_len_per_gpu=501"]
    loaded = load("ppo", [*argv, f"{ACTOR}.{SEQUENCE_RANKS}=2"])
    assert loaded.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    wrong = {problem.key: problem for problem in problems_of(argv)}
    assert "2 trajectories for 4 ranks" in wrong[f"{ACTOR}.ppo_mini_batch_size"].wrong
    (small,) = problems_of([*argv, f"{ACTOR}.{SEQUENCE_RANKS}=2", f"{ACTOR}.ppo_max_token_len_per_gpu=500"])
    assert "500 tokens of each of 2 ranks" in small.wrong and small.expected == "501 or more"
