"""What the keys of LoRA ask for must be there, and what an adapter makes superfluous is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hone.config.lora
from hone.config import load
from hone.config.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tests.config.test_check import Runnable, problems_of

MODEL, ACTOR, REF = "actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.ref"
GRPO = "algorithm.adv_estimator=grpo"


def adapter(folder: Path, **fields: Any) -> Path:
    folder.mkdir()
    trained = {"peft_type": "LORA", "r": 8, "lora_alpha": 32, "target_modules": ["q_proj"], "bias": "none"}
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**trained, **fields}))
    (folder / ADAPTER_WEIGHTS).touch()
    return folder


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hone.config.lora, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("command", "key"), [("ppo", f"{MODEL}.lora_rank"), ("ppo", "critic.model.lora_rank"), ("sft", "model.lora_rank")]
)
def test_a_missing_package_names_the_extra(
    command: str, key: str, runnable: Runnable, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*runnable[command], f"{key}=8"]
    load(command, argv)
    monkeypatch.setattr(hone.config.lora, "find_spec", lambda name: None if name == "peft" else object())
    (problem,) = problems_of(argv, command)
    assert problem.key == key and problem.fix == 'pip install "hone-rl[lora]"'
    load(command, runnable[command])


@pytest.mark.parametrize(
    ("fields", "more", "key", "wrong"),
    [
        ({}, [f"{MODEL}.lora_rank=16"], "lora_rank", "16 differs from the adapter's r=8"),
        ({}, [f"{MODEL}.lora_alpha=64"], "lora_alpha", "64 differs from the adapter's lora_alpha=32"),
        ({"use_dora": True}, [], "lora_adapter_path", "more than LoRA"),
        ({"peft_type": "IA3"}, [], "lora_adapter_path", "holds no LoRA adapter"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    fields: dict, more: list[str], key: str, wrong: str, runnable: Runnable, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "adapter", **fields)
    (problem,) = problems_of([*runnable["ppo"], f"{MODEL}.lora_adapter_path={folder}", *more])
    assert problem.key == f"{MODEL}.{key}" and wrong in problem.wrong


def test_an_adapter_that_fits_is_let_through(runnable: Runnable, tmp_path: Path) -> None:
    path = f"{MODEL}.lora_adapter_path={adapter(tmp_path / 'adapter')}"
    for more in ([], [f"{MODEL}.lora_rank=8", f"{MODEL}.lora_alpha=32"]):
        assert load("ppo", [*runnable["ppo"], path, *more]).config.actor_rollout_ref.model.trains_adapter


def test_a_folder_without_an_adapter_is_refused(runnable: Runnable, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter")
    (folder / ADAPTER_WEIGHTS).unlink()
    (problem,) = problems_of([*runnable["ppo"], f"{MODEL}.lora_adapter_path={folder}"])
    assert problem.wrong == f"there is no {folder / ADAPTER_WEIGHTS}"
    (folder / ADAPTER_CONFIG).write_text("{")
    (folder / ADAPTER_WEIGHTS).touch()
    (problem,) = problems_of([*runnable["ppo"], f"{MODEL}.lora_adapter_path={folder}"])
    assert "is not JSON" in problem.wrong


def test_fsdp1_cannot_hold_two_formats(runnable: Runnable) -> None:
    ranks = ["trainer.n_gpus_per_node=2", f"{MODEL}.lora_rank=8", GRPO]
    half = f"{ACTOR}.fsdp_config.model_dtype=bf16"
    (problem,) = problems_of([*runnable["ppo"], *ranks, half, f"{ACTOR}.strategy=fsdp"])
    assert problem.key == f"{ACTOR}.fsdp_config.model_dtype" and "fsdp2" in problem.fix
    load("ppo", [*runnable["ppo"], *ranks, half, f"{ACTOR}.strategy=fsdp2"])
    load("ppo", [*runnable["ppo"], *ranks, f"{ACTOR}.strategy=fsdp"])


def test_keys_that_rest_are_named(runnable: Runnable, tmp_path: Path) -> None:
    def said(*more: str) -> str:
        return "\n".join(load("ppo", [*runnable["ppo"], GRPO, *more]).notices)

    targets = f"{MODEL}.target_modules=[q_proj]"
    assert f"trains all weights, so nothing is left to do for {MODEL}.target_modules" in said(targets)
    assert f"{MODEL}.target_modules" not in said(targets, f"{MODEL}.lora_rank=8")
    path = f"{MODEL}.lora_adapter_path={adapter(tmp_path / 'adapter')}"
    assert f"has its own, so nothing is left to do for {MODEL}.target_modules" in said(targets, path)
    reference = (f"{ACTOR}.use_kl_loss=True", f"{REF}.fsdp_config.model_dtype=bf16")
    assert f"nothing is left to do for {REF}.fsdp_config.model_dtype" in said(*reference, f"{MODEL}.lora_rank=8")
    assert f"{REF}.fsdp_config.model_dtype" not in said(*reference)
