"""Whole runs in miniature: command lines, and what they leave on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hone.cluster import LocalExecutor
from hone.config import load

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"

# A random model answers nothing rightly: scores come from the text's letters, so that answers differ in them.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return sum(map(ord, solution_str)) % 7 / 7


def with_extras(data_source, solution_str, ground_truth, extra_info):
    score = sum(map(ord, solution_str)) % 7 / 7
    return {"score": score, "acc": score > 0.5, "pred": solution_str[:1], "length": len(solution_str)}


def sometimes_none(data_source, solution_str, ground_truth, extra_info):
    score = sum(map(ord, solution_str)) % 7 / 7
    return None if score < 0.4 else score
"""


@dataclass(frozen=True)
class Stage:
    """A model, data and a reward file for runs that write below `directory`."""

    directory: Path
    model: Path
    data: Path

    @property
    def reward(self) -> Path:
        path = self.directory / "reward.py"
        if not path.exists():
            path.write_text(REWARD)
        return path

    def ppo(self, name: str, *more: str, estimator: str = "grpo") -> list[str]:
        """Two steps in fp32 of 4 prompts x 2 answers of at most 8 tokens, in mini-batches of 2 prompts."""
        return [
            f"data.train_files={self.data}/train.parquet",
            f"data.val_files={self.data}/test.parquet",
            "data.train_batch_size=4",
            "data.max_prompt_length=100",
            "data.max_response_length=8",
            "data.val_max_samples=3",
            f"{MODEL}.path={self.model}",
            f"{ACTOR}.ppo_mini_batch_size=2",
            f"{ACTOR}.optim.lr=1e-3",
            f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32",
            "critic.optim.lr=1e-3",
            "critic.model.fsdp_config.mixed_precision.param_dtype=fp32",
            f"{REF}.fsdp_config.mixed_precision.param_dtype=fp32",
            f"{ROLLOUT}.name=hf",
            f"{ROLLOUT}.n=2",
            f"algorithm.adv_estimator={estimator}",
            f"custom_reward_function.path={self.reward}",
            "trainer.device=cpu",
            "trainer.n_gpus_per_node=1",
            "trainer.logger=[]",
            "trainer.total_training_steps=2",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            "trainer.save_freq=2",
            f"trainer.default_local_dir={self.directory}/{name}",
            *more,
        ]

    def sft(self, name: str, *more: str) -> list[str]:
        """Two steps in fp32 of 8 rows."""
        return [
            f"data.train_files={self.data}/train.parquet",
            f"data.val_files={self.data}/test.parquet",
            "data.response_key=answer",
            "data.max_length=100",
            "data.train_batch_size=8",
            f"model.partial_pretrain={self.model}",
            "model.fsdp_config.mixed_precision.param_dtype=fp32",
            "optim.lr=1e-3",
            "trainer.device=cpu",
            "trainer.logger=[]",
            "trainer.total_training_steps=2",
            "trainer.save_freq=2",
            f"trainer.default_local_dir={self.directory}/{name}",
            *more,
        ]

    def run_ppo(self, name: str, *more: str, estimator: str = "grpo") -> Run:
        return Run.ppo(self.directory / name, self.ppo(name, *more, estimator=estimator))

    def run_sft(self, name: str, *more: str) -> Run:
        return Run.sft(self.directory / name, self.sft(name, *more))


@dataclass(frozen=True)
class Run:
    """A finished run's folder."""

    directory: Path

    @staticmethod
    def ppo(directory: Path, argv: list[str]) -> Run:
        from hone.trainers.ppo import PPOTrainer

        PPOTrainer(load("ppo", argv), LocalExecutor()).fit()
        return Run(directory)

    @staticmethod
    def sft(directory: Path, argv: list[str]) -> Run:
        from hone.trainers.sft import SFTTrainer

        SFTTrainer(load("sft", argv), LocalExecutor()).fit()
        return Run(directory)

    def lines(self, path: str = "metrics.jsonl") -> list[dict[str, Any]]:
        return [json.loads(text) for text in (self.directory / path).read_text().splitlines()]

    def weights(self, step: int = 2, role: str = "actor") -> dict[str, torch.Tensor]:
        """What was trained: an adapter's weights where there is one."""
        folder = self.directory / f"global_step_{step}" / role
        adapter = folder / "lora_adapter" / "adapter_model.safetensors"
        return load_file(adapter if adapter.exists() else folder / "model.safetensors")

    def results(self) -> list[dict[str, float]]:
        """The metrics without what a clock says."""
        clocks = ("timing", "perf/time", "perf/throughput", "perf/mfu")
        return [{k: v for k, v in line.items() if not k.startswith(clocks)} for line in self.lines()]


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Norm of the difference of all weights over their norm."""
    apart = sum(float((a[name] - b[name]).double().square().sum()) for name in a)
    return (apart / sum(float(t.double().square().sum()) for t in a.values())) ** 0.5
