"""Whole runs with vLLM, run by `make test-vllm`: what is sampled is what is trained, and stale weights end a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.cli.main import main
from hone.cluster import LocalExecutor
from hone.config import load
from hone.errors import UserError
from tests.trainers.runs import ROLLOUT, Stage

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

VLLM = (
    f"{ROLLOUT}.name=vllm",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.max_num_seqs=16",
    f"{ROLLOUT}.max_num_batched_tokens=256",
    f"+{ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes={2**26}",
    f"{ROLLOUT}.verify_weights=always",
    f"{ROLLOUT}.temperature=0.8",
)


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


def test_two_steps_train_on_exactly_what_vllm_sampled(stage: Stage) -> None:
    run = stage.run_ppo("run", *VLLM, "trainer.test_freq=1")
    lines = run.lines()
    assert [line["training/global_step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["training/rollout_probs_diff_max"] < 1e-4
        assert line["actor/grad_norm"] > 0 and "timing_s/update_weights" in line
        assert any(key.startswith("val") for key in line)


def test_an_engine_that_does_not_take_its_weights_ends_the_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    from hone.rollout.vllm.engine import VLLMEngine

    async def nothing(self, weights, version):
        self.version = version

    monkeypatch.setattr(VLLMEngine, "update_weights", nothing)
    with pytest.raises(UserError, match="does not have the trainer's weights after step 0"):
        stage.run_ppo("run", *VLLM)


def test_generation_of_a_file_of_prompts_equals_that_of_hones_own_engine(stage: Stage) -> None:
    from hone.trainers.generate import generate

    for name in ("hf", "vllm"):
        generate(load("generate", generation(stage, name)), LocalExecutor())
    assert generated(stage, "vllm") == generated(stage, "hf")


def generation(stage: Stage, name: str) -> list[str]:
    """A command line that answers four prompts greedily."""
    return [
        f"data.path={stage.data}/test.parquet", f"model.path={stage.model}",
        f"data.output_path={stage.directory}/{name}.json", "data.max_samples=4",
        "rollout.prompt_length=100", "rollout.response_length=12", "rollout.do_sample=False", f"rollout.name={name}",
        "rollout.max_num_seqs=8", "rollout.max_num_batched_tokens=256", "trainer.device=cpu", "rollout.dtype=float32",
        "rollout.gpu_memory_utilization=0.2",
    ]  # fmt: skip


def generated(stage: Stage, name: str) -> list[list[str]]:
    return [row["responses"] for row in json.loads((stage.directory / f"{name}.json").read_text())]


def test_the_demo_generates_with_vllm_throughout_and_learns(tmp_path: Path) -> None:
    """At full size, about ten minutes. With hone's own engine the demo comes to 84 to 97 %, as rounding has it."""
    demo = tmp_path / "demo"
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--engine", "vllm", "--output", str(demo)])
    assert not ended.value.code
    summary = json.loads((demo / "summary.json").read_text())
    assert summary["accuracy_before"] < 0.5 and summary["accuracy_after"] > 0.7
    lines = [json.loads(line) for line in (demo / "rl" / "metrics.jsonl").open()]
    assert lines and all(line["training/rollout_probs_diff_max"] < 1e-3 for line in lines if line["step"])
