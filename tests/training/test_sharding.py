"""A model sharded over ranks trains what one process trains: loss, gradient norm, log-probs and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hone.batch import Batch
from hone.errors import UserError
from hone.training.checkpoint import load_engine, save_engine
from hone.training.engine import TorchEngine
from hone.training.micro_batches import MicroBatching
from hone.training.outputs import ForwardOptions, OutputModule
from hone.training.sharding import ShardOptions, shard
from tests.models_of_families import tiny
from tests.ranks import run_ranks
from tests.training.test_engine import POLICY, make_batch, poisoned

EVERYTHING = ("model", "optimizer", "extra")
CPU = torch.device("cpu")


def engine(family: str, options: ShardOptions | None, micro: MicroBatching, forward: ForwardOptions) -> TorchEngine:
    model = tiny(family)
    module, sharding = shard(OutputModule(model, forward), model, options, CPU)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-3)  # a small eps makes noise of small gradients
    return TorchEngine(
        model, scoring=micro, train=micro, options=forward, optimizer=optimizer, grad_clip=0.5, module=module,
        sharding=sharding,
    )  # fmt: skip


def share(batch: Batch, dealt: list[list[int]]) -> Batch:
    return batch.select(dealt[dist.get_rank()] if dist.is_initialized() else range(len(batch)))


def updates(trained: TorchEngine, dealt: list[list[int]], steps: range) -> list[dict[str, float]]:
    batches = [share(make_batch(seed=step), dealt) for step in steps]
    return [trained.step(b, POLICY, training_step=i, mask="loss_mask") for i, b in zip(steps, batches, strict=True)]


def train(rank: int, family: str, options: Any, micro: Any, forward: Any, dealt: list[list[int]]) -> dict[str, Any]:
    trained = engine(family, options, micro, forward)
    metrics = updates(trained, dealt, range(3))
    batch = share(make_batch(), dealt)
    logprobs = trained.forward(batch, {"logprobs", "entropy"}, mask="loss_mask")
    weights = {name: tensor.numpy() for name, tensor in trained.weights().items()}
    return {"metrics": metrics, "weights": weights, "logprobs": logprobs["logprobs"].numpy()}


DEALT = {
    2: [[0, 2, 4, 6], [1, 3, 5]],
    4: [[0, 1, 2, 3], [], [4], [5, 6]],  # one rank has nothing, ranks have different numbers of micro-batches
}
FSDP2, FSDP1 = ShardOptions("fsdp2"), ShardOptions("fsdp")
MICRO = {"1": MicroBatching(1), "30 tokens": MicroBatching(max_tokens=30)}


@pytest.mark.parametrize(
    ("family", "size", "options", "micro", "packed"),
    [
        ("qwen3", 2, FSDP2, "1", True),
        ("qwen3", 4, FSDP2, "30 tokens", True),
        ("qwen3", 4, ShardOptions("fsdp2", shard_size=2), "1", True),
        ("qwen3", 2, ShardOptions("fsdp2", shard_size=1), "1", False),
        ("llama", 2, ShardOptions("fsdp2", reshard_after_forward=False), "30 tokens", False),
        ("gemma2", 2, ShardOptions("fsdp2", min_num_params=3000), "1", True),
        ("qwen3", 2, FSDP1, "1", True),
        ("qwen2", 4, FSDP1, "30 tokens", False),
        ("llama", 4, ShardOptions("fsdp", shard_size=2, forward_prefetch=True), "1", True),
        ("qwen3", 2, ShardOptions("fsdp", reshard_after_forward=False), "30 tokens", True),
    ],
)
def test_sharded_ranks_train_what_one_process_trains(
    family: str, size: int, options: ShardOptions, micro: str, packed: bool
) -> None:
    forward = ForwardOptions(packed=packed)
    alone = train(0, family, None, MicroBatching(3), forward, [])
    everyone = run_ranks(size, train, family, options, MICRO[micro], forward, DEALT[size])
    for one in everyone:
        for ours, theirs in zip(one["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
        assert one["weights"].keys() == alone["weights"].keys()
        for name, expected in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
    batch = make_batch()
    for dealt, one in zip(DEALT[size], everyone, strict=True):
        places = np.concatenate([np.arange(batch.offsets[r], batch.offsets[r + 1]) for r in dealt] or [[]]).astype(int)
        np.testing.assert_allclose(one["logprobs"], alone["logprobs"][places], rtol=1e-5, atol=1e-5)


def resume(rank: int, options: Any, folder: Path, dealt: list[list[int]], *, save: bool) -> dict[str, Any]:
    trained = engine("qwen3", options, MicroBatching(1), ForwardOptions())
    if save:
        updates(trained, dealt, range(2))
        save_engine(trained, folder, EVERYTHING)
    else:
        load_engine(trained, folder, EVERYTHING)
    updates(trained, dealt, range(2, 4))
    return {name: tensor.numpy() for name, tensor in trained.weights().items()}


def saved(rank: int, *arguments: Any) -> dict[str, Any]:
    return resume(rank, *arguments, save=True)


def loaded(rank: int, *arguments: Any) -> dict[str, Any]:
    return resume(rank, *arguments, save=False)


@pytest.mark.parametrize("options", [FSDP2, FSDP1], ids=["fsdp2", "fsdp1"])
def test_a_checkpoint_goes_on_with_any_number_of_ranks(tmp_path: Path, options: ShardOptions) -> None:
    expected = run_ranks(2, saved, options, tmp_path, DEALT[2])[0]
    runs = [
        run_ranks(2, loaded, options, tmp_path, DEALT[2])[0],
        run_ranks(4, loaded, options, tmp_path, DEALT[4])[0],
        loaded(0, None, tmp_path, []),
    ]
    for found in runs:
        for name, weights in expected.items():
            np.testing.assert_allclose(found[name], weights, rtol=1e-5, atol=1e-6, err_msg=name)


def poison(rank: int, options: ShardOptions) -> tuple[list[float], str, bool]:
    trained = engine("qwen3", options, MicroBatching(1), ForwardOptions())
    before = {name: tensor.clone() for name, tensor in trained.weights().items()}
    bad, skipped, said = share(poisoned(make_batch()), DEALT[2]), [], ""
    for step in range(3):
        try:
            skipped.append(trained.step(bad, POLICY, training_step=step, mask="loss_mask")["nonfinite_steps"])
        except UserError as error:
            said = str(error)
    return skipped, said, all(torch.equal(before[name], tensor) for name, tensor in trained.weights().items())


@pytest.mark.parametrize("options", [FSDP2, FSDP1], ids=["fsdp2", "fsdp1"])
def test_a_nan_on_one_rank_skips_the_step_on_all(options: ShardOptions) -> None:
    for skipped, said, unchanged in run_ranks(2, poison, options):
        assert skipped == [1.0, 1.0] and "3 optimiser steps in a row" in said and unchanged
