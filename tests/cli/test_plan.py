"""`hone plan`: read at a glance, as JSON, and without weights or a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

from hone.cli.demo import SHORT
from hone.cli.demo_stages import Algorithm, stages
from hone.cli.main import main
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Stage


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder with the config.json of a model of 7.6 billion parameters, and nothing else."""
    config = Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, architectures=["Qwen2ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path / "large")
    return tmp_path / "large"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *argv])
        raise SystemExit(0)
    return int(caught.value.code or 0)


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(*argv, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_is_read_at_a_glance(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ppo", *stage.ppo("run", f"{ACTOR}.use_kl_loss=True", estimator="gae")) == 0
    text = capsys.readouterr().out
    for word in ("hone ppo: 2 training steps", "actor", "critic", "ref", "rollout", "update critic", "KV cache",
                 "optimizer.pt", "it fits", "checkpoints", "1: after step 2"):  # fmt: skip
        assert word in text, word


def test_ppo_is_planned_where_no_command_is_named(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    argv = stage.ppo("run")
    bare, named = planned(capsys, *argv), planned(capsys, "ppo", *argv)
    assert all(bare[part] == named[part] for part in ("command", "steps", "updates", "models", "phases"))
    assert planned(capsys, "sft", *stage.sft("run"))["command"] == "sft"


def test_a_plan_writes_nothing(stage: Stage) -> None:
    assert run("ppo", *stage.ppo("run")) == 0
    assert not (stage.directory / "run").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ppo", "data.train_batchsize=3"], "did you mean data.train_batch_size?"),
        (["eval", "data.path=x"], "there is no plan of 'eval'"),
        (["ppo", "--device", "tpu"], "--device=tpu: expected cuda or cpu"),
        (["ppo", "--memory-gib", "0"], "--memory-gib=0: expected a number > 0"),
        (["ppo", "--memory-gib=-2"], "--memory-gib=-2: expected a number > 0"),
        (["ppo", "--memory-gib", "nan"], "--memory-gib=nan: expected a number > 0"),
    ],
)
def test_a_mistake_is_one_message(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


def test_problems_are_found_without_heavy_packages() -> None:
    code = (
        "import sys\nfrom hone.cli.main import main\n"
        "try:\n    main(['plan', 'ppo', 'data.train_files=/no/such.parquet'])\n"
        "except SystemExit as end:\n    print(end.code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2 []\n" and "data.train_files" in done.stderr


def test_a_large_model_on_gpus_that_are_not_here(stage: Stage, large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        *stage.ppo("run", f"{MODEL}.path={large}", f"{MODEL}.use_fused_kernels=True", "trainer.save_freq=1"),
        f"{MODEL}.use_remove_padding=True", "trainer.n_gpus_per_node=8", "trainer.max_actor_ckpt_to_keep=1",
        f"{ROLLOUT}.n=8",
    ]  # fmt: skip
    argv.remove("trainer.device=cpu")
    small = planned(capsys, "ppo", *argv, "--device", "cuda", "--memory-gib", "80")
    actor, count = small["models"]["actor"], 7_615_616_512
    assert actor["parameters"] == count
    # Every tensor's first dimension is a multiple of 8, so shards are equal.
    assert (actor["weights"], actor["optimizer"]) == (4 * count // 8, 8 * count // 8 + 4 * 339)
    assert small["models"]["rollout"]["weights"] == 4 * count
    assert small["machine"]["memory"] == 80 * 2**30 and small["fits"] is False
    assert any("80.0 GiB" in text and "checkpoint.save_contents" in text for text in small["warnings"])
    checkpoint = small["disk"]["roles"]["actor"]
    assert checkpoint["files"]["model.safetensors"] == 4 * count
    assert (checkpoint["saves"], checkpoint["kept"]) == (2, 1) and checkpoint["most"] == 2 * checkpoint["checkpoint"]
    assert planned(capsys, "ppo", *argv, "--device", "cuda", "--memory-gib", "200")["fits"] is True


def test_how_much_memory_there_is_may_be_unknown(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.trainers.planning.machine.has_gpu", lambda: False)
    assert planned(capsys, "ppo", *stage.ppo("run"), "--device", "cuda")["fits"] is None
    assert run("ppo", *stage.ppo("run"), "--device", "cuda") == 0
    assert "state it with --memory-gib" in capsys.readouterr().out


def test_a_disk_that_is_short_is_said(
    stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(capsys, "ppo", *stage.ppo("run"))["warnings"] == []
    monkeypatch.setattr("hone.trainers.planning.disk.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    (warning,) = planned(capsys, "ppo", *stage.ppo("run"))["warnings"]
    assert "trainer.max_actor_ckpt_to_keep" in warning and str(stage.directory) in warning


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_the_stages_of_the_demo_are_planned(
    algorithm: Algorithm, tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    places = {f"{tmp_path}/data": str(arithmetic_dir), f"{tmp_path}/model": str(tiny_model_dir)}
    places[f"{tmp_path}/sft/global_step_{SHORT.sft_steps}/model/huggingface"] = str(tiny_model_dir)
    for stage in stages(algorithm, 0, 1, SHORT, tmp_path):
        command, *argv = stage.command
        if command in ("ppo", "sft"):
            for place, there in places.items():
                argv = [text.replace(place, there) for text in argv]
            plan = planned(capsys, command, *argv)
            assert plan["steps"]["total"] == (SHORT.sft_steps if command == "sft" else SHORT.rl_steps)
            assert plan["fits"] and not plan["warnings"]
            assert ("critic" in plan["models"]) == (command == "ppo" and algorithm is Algorithm.ppo)


def test_offloaded_tensors_lie_on_the_cpu_between_their_uses(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    offload = [f"{ACTOR}.fsdp_config.param_offload=True", f"{ACTOR}.fsdp_config.optimizer_offload=True"]
    argv = stage.ppo("run", "algorithm.adv_estimator=gae")
    on_gpu = planned(capsys, "ppo", *argv, "--device", "cuda")
    away = planned(capsys, "ppo", *argv, *offload, "--device", "cuda")
    actor = away["models"]["actor"]
    values, before = away["phases"]["values"], on_gpu["phases"]["values"]
    assert before["device"]["weights"] - values["device"]["weights"] == actor["weights"]
    assert before["device"]["gradients"] - values["device"]["gradients"] == actor["gradients"]
    assert values["host"] == {"weights": actor["weights"], "optimiser": actor["optimizer"]}
    update = away["phases"]["update actor"]
    assert update["device"]["weights"] == before["device"]["weights"]
    assert f"{ROLLOUT}.name=hf" in argv and planned(capsys, "ppo", *argv, *offload)["phases"]["values"]["host"] == {}
