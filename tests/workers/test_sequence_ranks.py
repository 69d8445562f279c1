"""Workers built from a configuration whose roles share sequences over ranks, each its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hone.batch import Batch
from hone.config import load
from hone.errors import UserError
from hone.workers.actor import ActorWorker, ReferenceWorker
from hone.workers.critic import CriticWorker
from hone.workers.settings import RunSettings
from tests.ranks import run_ranks
from tests.trainers.runs import ACTOR, MODEL, REF, Stage
from tests.training.test_engine import PROMPTS, make_batch

ROLES = {"ref": ReferenceWorker, "actor": ActorWorker, "critic": CriticWorker}
ARGV = [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True", f"{ACTOR}.use_kl_loss=True"]
SIZE = "ulysses_sequence_parallel_size"
SHARED = [f"{ACTOR}.{SIZE}=2", f"{REF}.{SIZE}=1", f"critic.{SIZE}=2", "trainer.n_gpus_per_node=2"]


def workers(argv: list[str]) -> dict[str, Any]:
    config, built = load("ppo", argv).config, {}
    for name, cls in ROLES.items():
        built[name] = cls(config=config, run=RunSettings(torch.device("cpu")), peers=built)
    return built


def trajectories() -> Batch:
    batch = make_batch().with_rows(prompt_length=torch.tensor(PROMPTS))
    return batch.with_tokens(values=batch["advantages"] * 0.1, returns=batch["advantages"])


def one_step(rank: int, argv: list[str], rows_of_ref: list[list[int]]) -> dict[str, Any]:
    """Every call that a training step makes; the reference alone has rows of its own on each rank."""
    built, batch = workers(argv), trajectories()
    mine = batch.select(rows_of_ref[rank]) if dist.is_initialized() else batch
    columns = {
        **built["actor"].compute_logprobs(batch).tokens,
        **built["ref"].compute_logprobs(mine).tokens,
    }
    metrics = {
        **built["critic"].update(batch, training_step=0),
        **built["actor"].update(batch.with_tokens(ref_logprobs=batch["old_logprobs"]), training_step=0),
    }
    columns["after"] = built["actor"].compute_logprobs(batch)["old_logprobs"]
    columns |= built["critic"].compute_values(batch).tokens  # a new head is zero until it has learnt
    return {"columns": {k: v.numpy() for k, v in columns.items()}, "metrics": metrics}


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.mark.slow
def test_workers_compute_and_update_as_in_one_process(stage: Stage) -> None:
    dealt = [[0, 2, 4, 6], [1, 3, 5]]
    alone = one_step(0, stage.ppo("alone", *ARGV, estimator="gae"), [])
    everyone = run_ranks(2, one_step, stage.ppo("together", *ARGV, *SHARED, estimator="gae"), dealt)
    batch = trajectories()
    for rows, one in zip(dealt, everyone, strict=True):
        assert one["metrics"] == pytest.approx(alone["metrics"], rel=1e-5, abs=1e-6)
        for name, expected in alone["columns"].items():
            whole = Batch(batch.offsets, {name: torch.from_numpy(expected)})
            wanted = whole.select(rows) if name == "ref_logprobs" else whole
            assert one["columns"][name] == pytest.approx(wanted[name].numpy(), rel=1e-5, abs=1e-5), name


def test_a_model_whose_heads_the_ranks_cannot_share_is_refused_with_its_key(stage: Stage) -> None:
    argv = stage.ppo("three", *ARGV, f"{ACTOR}.ppo_mini_batch_size=4", "trainer.n_gpus_per_node=3", estimator="gae")
    for section, name in ((ACTOR, "actor"), (REF, "ref"), ("critic", "critic")):
        config = load("ppo", [*argv, f"{section}.{SIZE}=3"]).config
        with pytest.raises(UserError, match=rf"{section}.{SIZE}=3: .* heads, which 3 ranks"):
            ROLES[name](config=config, run=RunSettings(torch.device("cpu")), peers={})
