"""Bytes that ranks keep of sharded weights, and bytes of checkpoints, beside real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from hone.config import load
from hone.trainers.planning.plan import Plan
from hone.workers.build import actor_recipe
from hone.workers.settings import RunSettings
from tests.ranks import run_ranks
from tests.trainers.runs import ACTOR, MODEL, Stage

Planner = Callable[..., Plan]
SHARDED = [
    ("trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=fsdp2"),
    ("trainer.n_gpus_per_node=3", f"{ACTOR}.strategy=fsdp2", f"{ACTOR}.fsdp_config.model_dtype=bf16",
     f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"),
    ("trainer.n_gpus_per_node=4", f"{ACTOR}.strategy=fsdp2", f"{ACTOR}.fsdp_config.fsdp_size=2"),
    ("trainer.n_gpus_per_node=3", f"{ACTOR}.strategy=fsdp2", f"{MODEL}.lora_rank=4"),
    ("trainer.n_gpus_per_node=2", f"{ACTOR}.strategy=fsdp"),
]  # fmt: skip


def held(rank: int, argv: list[str]) -> dict[str, int]:
    """Bytes of this rank's tensors, once the optimiser has made a step."""
    config = load("ppo", argv).config
    engine = actor_recipe(config, RunSettings(torch.device("cpu"))).engine()
    assert engine.optimizer is not None
    parameters = list(engine.module.parameters())
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    engine.optimizer.step()
    state = [v for s in engine.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    grads = [p.grad for p in parameters if p.grad is not None]
    return {"weights": size(parameters), "gradients": size(grads), "optimizer": size(state)}


def size(tensors: Any) -> int:
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


@pytest.mark.parametrize("more", SHARDED, ids=lambda more: " ".join(text.rpartition(".")[2] for text in more))
def test_a_rank_keeps_its_shards(more: tuple[str, ...], stage: Stage, plan: Planner) -> None:
    argv = stage.ppo("run", *more, f"{ACTOR}.use_kl_loss=False")
    planned = plan("ppo", argv)
    storage = next(model.storage for model in planned.models if model.role == "actor")
    ranks = run_ranks(planned.places.ranks, held, argv)
    for part in ("weights", "gradients", "optimizer"):
        most = max(rank[part] for rank in ranks)
        # FSDP1 also keeps a few numbers between parameters, so that each begins at a multiple of 16 bytes.
        assert getattr(storage, part) == pytest.approx(most, rel=0.01 if more[1].endswith("=fsdp") else 0)


@pytest.mark.parametrize(
    ("estimator", "more"),
    [
        ("gae", []),
        ("grpo", [f"{MODEL}.lora_rank=4", f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]"]),
        ("grpo", [f"{ACTOR}.checkpoint.save_contents=[model,hf_model]", f"{ACTOR}.fsdp_config.model_dtype=bf16",
                  f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"]),
    ],
)  # fmt: skip
def test_a_checkpoint_is_as_large_as_its_plan_says(
    estimator: str, more: list[str], stage: Stage, plan: Planner
) -> None:
    more = [*more, "trainer.save_freq=1", "trainer.total_training_steps=3", "trainer.max_actor_ckpt_to_keep=2"]
    planned = plan("ppo", stage.ppo("run", *more, estimator=estimator)).disk
    run = stage.run_ppo("run", *more, estimator=estimator)
    kept = sorted(folder.name for folder in run.directory.glob("global_step_*"))
    for role, disk in planned.roles.items():
        folders = list(run.directory.glob(f"global_step_*/{role}"))
        assert len(folders) == disk.kept
        assert {path.name for path in folders[0].iterdir()} == set(disk.files)
        for name, told in disk.files.items():
            path = folders[0] / name
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            written = sum(file.stat().st_size for file in files)
            assert told == pytest.approx(written, rel=0.05, abs=60_000), (
                role,
                name,
            )  # names, and a frame around each tensor
    assert len(kept) == max(disk.kept for disk in planned.roles.values())
