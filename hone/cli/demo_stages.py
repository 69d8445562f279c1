"""The commands of `hone demo`, in order: data, a tiny model, fine-tuning, reinforcement, and a measurement before and
after it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hone.cli import demo_calculator


class Algorithm(str, Enum):
    grpo = "grpo"
    ppo = "ppo"


class Task(str, Enum):
    arithmetic = "arithmetic"
    calculator = "calculator"


class Engine(str, Enum):
    hf = "hf"
    vllm = "vllm"


@dataclass(frozen=True)
class Stage:
    """One command, what it leaves behind, and the file from which its figures are read."""

    name: str
    command: list[str]
    output: Path
    figures: Path | None = None

    @property
    def text(self) -> str:
        return shlex.join(["hone", *self.command])


@dataclass(frozen=True)
class Plan:
    """How long the two trainings are."""

    sft_steps: int = 1400
    rl_steps: int = 60


def stages(
    algorithm: Algorithm,
    seed: int,
    ranks: int,
    plan: Plan,
    d: Path,
    task: Task = Task.arithmetic,
    engine: Engine = Engine.hf,
) -> Iterator[Stage]:
    """The demo's commands, in order. `d` is the run directory."""
    if task is Task.calculator:
        for name, command, output in demo_calculator.commands(seed, ranks, plan.sft_steps, plan.rl_steps, d):
            figures = d / name / "metrics.jsonl" if name in ("sft", "rl") else None
            more = [*_generating(engine, "actor_rollout_ref.rollout"), *_estimator(algorithm)] if name == "rl" else []
            yield Stage(name, [*command, *more], output, figures)
        return
    sft_model = d / "sft" / f"global_step_{plan.sft_steps}" / "model" / "huggingface"
    rl_model = d / "rl" / f"global_step_{plan.rl_steps}" / "actor" / "huggingface"
    yield Stage(
        "data", ["data", "arithmetic", "--output", f"{d}/data", "--seed", f"{seed}"], d / "data" / "test.parquet"
    )
    model = ["model", "tiny", "--output", f"{d}/model", "--corpus", f"{d}/data/train.parquet", "--seed", f"{seed}"]
    yield Stage("model", model, d / "model" / "config.json")
    yield Stage("sft", ["sft", *_sft(seed, plan, d)], sft_model, d / "sft" / "metrics.jsonl")
    yield from _measure("before", sft_model, d, engine)
    rl = [*_rl(algorithm, seed, ranks, plan, d, sft_model), *_generating(engine, "actor_rollout_ref.rollout")]
    yield Stage("rl", ["ppo", *rl], rl_model, d / "rl" / "metrics.jsonl")
    yield from _measure("after", rl_model, d, engine)


def _sft(seed: int, plan: Plan, d: Path) -> list[str]:
    return [
        f"data.train_files={d}/data/train.parquet",
        "data.response_key=answer",
        "data.train_batch_size=16",
        "data.micro_batch_size_per_gpu=16",
        "data.max_length=128",
        f"data.seed={seed}",
        f"model.partial_pretrain={d}/model",
        "model.use_remove_padding=True",
        "optim.lr=2e-3",
        "optim.lr_warmup_steps=20",
        "optim.min_lr_ratio=0.1",
        f"trainer.seed={seed}",
        "trainer.total_epochs=2",
        f"trainer.total_training_steps={plan.sft_steps}",
        "trainer.save_freq=500",
        "trainer.max_ckpt_to_keep=1",
        f"trainer.default_local_dir={d}/sft",
    ]


def _rl(algorithm: Algorithm, seed: int, ranks: int, plan: Plan, d: Path, model: Path) -> list[str]:
    common = [
        f"data.train_files={d}/data/train.parquet",
        f"data.val_files={d}/data/test.parquet",
        "data.train_batch_size=32",
        "data.max_prompt_length=48",
        "data.max_response_length=28",
        f"data.seed={seed}",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.use_prefix_grouper=True",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "actor_rollout_ref.actor.optim.lr=3e-4",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=5",
        "actor_rollout_ref.actor.optim.betas=[0.9,0.99]",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
        "actor_rollout_ref.rollout.n=8",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.logger=[console]",
        f"trainer.seed={seed}",
        "trainer.total_epochs=1",
        f"trainer.total_training_steps={plan.rl_steps}",
        "trainer.test_freq=10",
        "trainer.save_freq=20",
        "trainer.max_actor_ckpt_to_keep=1",
        "trainer.max_critic_ckpt_to_keep=1",
        f"trainer.default_local_dir={d}/rl",
        f"trainer.rollout_data_dir={d}/rl/rollouts",
    ]
    return [*common, *_estimator(algorithm)]


def _estimator(algorithm: Algorithm) -> list[str]:
    """GRPO; or PPO proper: a critic that starts as a copy of the fine-tuned model, and GAE."""
    if algorithm is Algorithm.grpo:
        return ["algorithm.adv_estimator=grpo"]
    return [
        "algorithm.adv_estimator=gae",
        "algorithm.lam=1.0",
        "critic.model.use_remove_padding=True",
        "critic.ppo_max_token_len_per_gpu=2048",
        "critic.optim.lr=1e-3",
        "trainer.critic_warmup=5",
    ]


def _generating(engine: Engine, section: str) -> list[str]:
    """An engine of one rank that leaves most of the memory to the trainer; hf needs nothing said."""
    if engine is Engine.hf:
        return [f"{section}.name=hf"]
    alone, small = f"{section}.tensor_model_parallel_size=1", f"{section}.gpu_memory_utilization=0.25"
    return [f"{section}.name={engine.value}", alone, small, f"{section}.max_num_seqs=256"]


def _measure(when: str, model: Path, d: Path, engine: Engine) -> Iterator[Stage]:
    responses = d / f"responses_{when}.parquet"
    generate = [
        f"model.path={model}",
        f"data.path={d}/data/test.parquet",
        f"data.output_path={responses}",
        "rollout.temperature=0",
        "rollout.prompt_length=100",
        "rollout.response_length=28",
        *_generating(engine, "rollout"),
    ]
    yield Stage(f"generate {when}", ["generate", *generate], responses, responses.with_suffix(".stats.json"))
    yield Stage(f"eval {when}", ["eval", f"data.path={responses}", f"output_path={d}/{when}.json"], d / f"{when}.json")
