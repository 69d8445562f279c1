"""Ranks that share one engine: the first drives it with everybody's devices, and the others hand over and score.

hone's own engine stands in for vLLM here, which the runs of `make test-vllm` share for real.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hone.config import engines as engines_module
from hone.config import load
from hone.models.load import ModelSource, load_causal_lm
from hone.rollout.hf import HFEngine
from hone.rollout.interface import Sampling
from hone.workers.actor import ActorWorker
from hone.workers.engine_groups import VISIBLE, EngineElsewhere, EngineGroup
from hone.workers.rollout import RolloutWorker
from hone.workers.settings import RunSettings
from tests.ranks import run_ranks
from tests.trainers.runs import ROLLOUT, Stage
from tests.workers.test_probe_ranks import end_of_two, no_update


def seen(rank: int, size: int, device: str) -> EngineGroup:
    os.environ[VISIBLE] = str(7 - rank)
    return EngineGroup.of(size, torch.device(device))


def test_the_first_of_consecutive_ranks_drives_on_the_devices_of_all_of_them():
    assert run_ranks(4, seen, 2, "cuda") == [
        EngineGroup(True, "7,6"), EngineGroup(False, "7,6"), EngineGroup(True, "5,4"), EngineGroup(False, "5,4")
    ]  # fmt: skip
    assert run_ranks(2, seen, 2, "cpu") == [EngineGroup(True, None), EngineGroup(False, None)]


def test_a_rank_alone_asks_nobody():
    assert EngineGroup.of(1, torch.device("cuda")) == EngineGroup(True, None)


def test_a_rank_that_does_not_drive_generates_nothing():
    with pytest.raises(RuntimeError, match="the rank that drives"):
        asyncio.run(EngineElsewhere().generate([1], Sampling(max_tokens=1)))


class StandIn(HFEngine):
    """As vLLM's: made from arguments, with weights of its own that are not the trainer's at first."""

    def __init__(self, arguments: Any, *, eos_token_ids: Any, devices: str | None) -> None:
        model = load_causal_lm(ModelSource(arguments.model, dtype=torch.float32))
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        self.arguments, self.devices = arguments, devices
        super().__init__(model, eos_token_ids=eos_token_ids, max_num_seqs=8, max_num_batched_tokens=256,
                         max_model_len=arguments.max_model_len, compute_dtype=torch.float32)  # fmt: skip


def hand_overs(rank: int, argv: list[str], stale_rank: int) -> tuple[str, int, str]:
    """The rank's engine, the parts that it has, and what ends the run."""
    engines_module.find_spec = lambda name: name  # type: ignore[assignment]
    module = ModuleType("hone.rollout.vllm.engine")
    module.VLLMEngine = StandIn  # type: ignore[attr-defined]
    sys.modules["hone.rollout.vllm.engine"] = module
    config, run = load("ppo", argv).config, RunSettings(torch.device("cpu"))
    peers: dict[str, Any] = {"actor": ActorWorker(config=config, run=run, peers={})}
    rollout = RolloutWorker(config=config, run=run, peers=peers)
    kind = type(rollout.engine).__name__
    parts = rollout.engine.arguments.tensor_parallel_size if isinstance(rollout.engine, StandIn) else 0
    if rank == stale_rank:
        rollout.engine.update_weights = no_update  # type: ignore[method-assign]
    return kind, parts, end_of_two(rollout)


@pytest.mark.slow
def test_all_ranks_hand_over_and_score_what_the_first_of_each_group_draws(
    tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path
):
    more = ["trainer.n_gpus_per_node=4", f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.tensor_model_parallel_size=2",
            f"{ROLLOUT}.dtype=float32", f"{ROLLOUT}.verify_weights=always"]  # fmt: skip
    argv = Stage(tmp_path, tiny_model_dir, arithmetic_dir).ppo("run", *more)
    kinds = [("StandIn", 2), ("EngineElsewhere", 0)] * 2
    assert run_ranks(4, hand_overs, argv, -1) == [(*kind, "") for kind in kinds]
    found = run_ranks(4, hand_overs, argv, 2)
    assert [of_rank[:2] for of_rank in found] == kinds
    assert len({of_rank[2] for of_rank in found}) == 1 and "after step 1 (rank 2)" in found[0][2]
