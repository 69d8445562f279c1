"""Fine-tuning over several ranks is fine-tuning in one process: losses, gradient norms, weights, validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hone.algorithms import loss_weights
from hone.batch import Batch
from hone.cluster import Dealing
from hone.config import load
from hone.training.ranks import Ranks
from hone.workers.settings import RunSettings
from hone.workers.sft import SFTWorker
from tests.ranks import run_ranks
from tests.trainers.runs import Stage

STEPS = 5
CPU = torch.device("cpu")


def demonstrations(rows: int, seed: int) -> Batch:
    """Ragged rows of random tokens, the second half of each trained, weighed as the trainer does."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(4, 40, size=rows).tolist()
    ids = [draw.integers(3, 200, size=n).tolist() for n in lengths]
    batch = Batch.from_sequences(
        {"input_ids": ids, "loss_mask": [[0] * (n // 2) + [1] * (n - n // 2) for n in lengths]}
    )
    return batch.with_tokens(loss_weight=loss_weights(batch["loss_mask"], batch.offsets, "token-mean"))


def tune(rank: int, argv: list[str], rows: int) -> dict[str, Any]:
    """Five steps and a validation on this rank's rows."""
    config = load("sft", argv).config
    worker = SFTWorker(config, RunSettings(CPU, total_steps=STEPS), {})
    size = dist.get_world_size() if dist.is_initialized() else 1
    shared_by = config.ulysses_sequence_parallel_size  # consecutive ranks that get the same rows

    def share(batch: Batch) -> Batch:
        return batch.select(Dealing().rows(batch, size // shared_by)[rank // shared_by])

    metrics = [worker.update(share(demonstrations(rows, seed)), training_step=seed) for seed in range(STEPS)]
    mine = share(demonstrations(9, STEPS))
    loglikelihood = float((worker.compute_logprobs(mine)["logprobs"] * mine["loss_mask"]).sum())
    weights = {name: tensor.numpy() for name, tensor in worker.engine.weights().items()}
    return {
        "metrics": metrics,
        "weights": weights,
        "validation": Ranks().sum({"sum": loglikelihood})["sum"] / shared_by,
    }


@pytest.mark.parametrize(
    ("size", "rows", "more"),
    [
        (2, 8, []),
        (4, 8, ["model.use_remove_padding=True", "data.micro_batch_size_per_gpu=1"]),
        (2, 7, ["model.strategy=fsdp", "data.use_dynamic_bsz=True", "data.max_token_len_per_gpu=100"]),
        (4, 8, ["model.fsdp_config.fsdp_size=2", "model.use_fused_kernels=True"]),
        (2, 8, ["model.fsdp_config.wrap_policy.min_num_params=300000"]),  # more than a layer has, less than all have
        (2, 8, ["model.fsdp_config.cpu_offload=True", "model.fsdp_config.offload_params=True"]),
        (2, 7, ["ulysses_sequence_parallel_size=2", "model.use_remove_padding=True"]),
        (4, 8, ["ulysses_sequence_parallel_size=2", "model.use_remove_padding=True", "model.strategy=fsdp"]),
        (4, 3, ["model.fsdp_config.wrap_policy.min_num_params=20000", "model.enable_gradient_checkpointing=True"]),
    ],
)
def test_ranks_learn_what_one_process_learns(
    tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path, size: int, rows: int, more: list[str]
) -> None:
    plain = Stage(tmp_path, tiny_model_dir, arithmetic_dir).sft("run", "optim.eps=1e-4")
    alone = tune(0, plain, rows)
    assert alone["metrics"][-1]["lr"] < alone["metrics"][1]["lr"]  # a schedule runs
    for one in run_ranks(size, tune, [*plain, f"trainer.n_gpus_per_node={size}", *more], rows):
        for ours, theirs in zip(one["metrics"], alone["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)
        assert one["validation"] == pytest.approx(alone["validation"], rel=1e-5)
        assert one["weights"].keys() == alone["weights"].keys()
        for name, expected in alone["weights"].items():
            np.testing.assert_allclose(one["weights"][name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
