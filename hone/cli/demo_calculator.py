"""The commands of `hone demo --task calculator`: a tiny model learns to let a calculator do what it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Both in tokens. A call takes 17, the calculator's answer and the turns around it 7, the last turn 7.
PROMPT, RESPONSE = 40, 48


def commands(seed: int, ranks: int, sft_steps: int, rl_steps: int, d: Path) -> Iterator[tuple[str, list[str], Path]]:
    """(stage, command, what it leaves behind), in order. `d` is the run directory."""
    sft_model = d / "sft" / f"global_step_{sft_steps}" / "model" / "huggingface"
    rl_model = d / "rl" / f"global_step_{rl_steps}" / "actor" / "huggingface"
    yield "data", ["data", "products", "--output", f"{d}/data", "--seed", f"{seed}"], d / "data" / "test.parquet"
    model = ["model", "tiny", "--tools", "--output", f"{d}/model", "--corpus", f"{d}/data/train.parquet"]
    yield "model", [*model, "--seed", f"{seed}"], d / "model" / "config.json"
    yield "sft", ["sft", *_sft(seed, sft_steps, d)], sft_model
    yield "rl", ["ppo", *_rl(seed, ranks, rl_steps, d, sft_model)], rl_model


def accuracies(d: Path) -> tuple[float, float]:
    """Before and after, on the held-out questions and with the most likely tokens: the run validates both times."""
    lines = [json.loads(line) for line in (d / "rl" / "metrics.jsonl").read_text().splitlines()]
    measured = [accuracy for line in lines if (accuracy := _accuracy(line)) is not None]
    return measured[0], measured[-1]


def _accuracy(metrics: dict[str, Any]) -> float | None:
    return next((v for name, v in metrics.items() if name.startswith("val-core/") and "/mean@" in name), None)


def _sft(seed: int, steps: int, d: Path) -> list[str]:
    return [
        f"data.train_files={d}/data/train.parquet",
        "data.multiturn.enable=True",
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
        f"trainer.total_training_steps={steps}",
        "trainer.save_freq=500",
        "trainer.max_ckpt_to_keep=1",
        f"trainer.default_local_dir={d}/sft",
    ]


def _rl(seed: int, ranks: int, steps: int, d: Path, model: Path) -> list[str]:
    return [
        f"data.train_files={d}/data/train.parquet",
        f"data.val_files={d}/data/test.parquet",
        "data.train_batch_size=32",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={RESPONSE}",
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
        "actor_rollout_ref.rollout.multi_turn.enable=True",
        f"actor_rollout_ref.rollout.multi_turn.tool_config_path={d}/data/tools.yaml",
        "actor_rollout_ref.rollout.multi_turn.max_turns=3",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.logger=[console]",
        f"trainer.seed={seed}",
        "trainer.total_epochs=1",
        f"trainer.total_training_steps={steps}",
        "trainer.test_freq=10",
        "trainer.save_freq=20",
        "trainer.max_actor_ckpt_to_keep=1",
        "trainer.max_critic_ckpt_to_keep=1",
        f"trainer.default_local_dir={d}/rl",
        f"trainer.rollout_data_dir={d}/rl/rollouts",
    ]
