"""The rollout of several ranks has copies of the weights: they are handed over, and one stale copy ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hone.config import load
from hone.errors import UserError
from hone.workers.actor import ActorWorker
from hone.workers.rollout import RolloutWorker
from hone.workers.settings import RunSettings
from tests.ranks import run_ranks
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Stage

WAYS = {
    "fsdp2": ["actor_rollout_ref.actor.strategy=fsdp2"],
    "fsdp": ["actor_rollout_ref.actor.strategy=fsdp"],
    "shared sequences": [f"{ACTOR}.ulysses_sequence_parallel_size=2", f"{MODEL}.use_remove_padding=True"],
}


def hand_overs(rank: int, argv: list[str], stale_rank: int) -> str:
    """What ends the run; nothing if nothing does. The weights change between two hand-overs."""
    config = load("ppo", argv).config
    run = RunSettings(torch.device("cpu"))
    peers: dict[str, Any] = {"actor": ActorWorker(config=config, run=run, peers={})}
    rollout = RolloutWorker(config=config, run=run, peers=peers)
    assert not rollout.shares
    if rank == stale_rank:
        rollout.engine.update_weights = no_update  # type: ignore[method-assign]
    return end_of_two(rollout)


def end_of_two(rollout: RolloutWorker) -> str:
    try:
        for version in (1, 2):
            with torch.no_grad():
                for parameter in rollout.actor.engine.module.parameters():
                    parameter.mul_(1.1)
            rollout.update_weights(version)
            assert list(rollout.rollout([])) == []
    except UserError as error:
        return str(error)
    return ""


async def no_update(weights: Any, version: int) -> None:
    """An engine that says it has taken the weights."""


@pytest.fixture
def argv(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> list[str]:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir).ppo("run", "trainer.n_gpus_per_node=2")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_copies_that_are_filled_pass_and_a_stale_one_is_named_by_every_rank(argv: list[str], way: str) -> None:
    argv = [*argv, *WAYS[way]]
    assert run_ranks(2, hand_overs, argv, -1) == ["", ""]
    found = run_ranks(2, hand_overs, argv, 1)
    assert found[0] == found[1] and "after step 1 (rank 1)" in found[0]


@pytest.mark.slow
@shows(f"{ROLLOUT}.verify_weights")
def test_a_stale_copy_is_only_found_where_it_is_looked_for(argv: list[str]) -> None:
    assert run_ranks(2, hand_overs, [*argv, f"{ROLLOUT}.verify_weights=never"], 0) == ["", ""]
    found = run_ranks(2, hand_overs, [*argv, f"{ROLLOUT}.verify_weights=always"], 0)
    assert "(rank 0)" in found[1]
