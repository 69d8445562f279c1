"""Each key of the rollout that concerns vLLM or SGLang is in the arguments with which its engine is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hone.config import engines as engines_module
from hone.config import load
from hone.models.load import ModelSource
from hone.trainers.ppo_setup import roles
from hone.training.ranks import Ranks
from hone.workers.engine_arguments import (
    sglang_generation_arguments,
    sglang_training_arguments,
    vllm_generation_arguments,
    vllm_training_arguments,
)
from hone.workers.rollout_engines import (
    ModelFacts,
    engine_dtype,
    ranks_per_engine,
)
from hone.workers.settings import RunSettings
from tests.shows import shows

ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def argv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(engines_module, "find_spec", lambda name: name)
    (tmp_path / "rows.parquet").touch()
    (tmp_path / "model").mkdir()
    return [
        f"data.train_files={tmp_path}/rows.parquet",
        f"data.val_files={tmp_path}/rows.parquet",
        "data.max_prompt_length=100",
        "data.max_response_length=28",
        f"{MODEL}.path={tmp_path}/model",
        f"{ROLLOUT}.name=vllm",
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[]",
    ]


def made(argv: list[str], device: torch.device = CPU) -> dict[str, Any]:
    loaded = load("ppo", argv)
    run = RunSettings(device, seed=loaded.config.trainer.seed, user_keys=loaded.user_keys)
    return vllm_training_arguments(loaded.config, run, torch.bfloat16).for_vllm()


KEYS = [
    (f"{ROLLOUT}.gpu_memory_utilization", "0.3", "gpu_memory_utilization", 0.5, 0.3),
    (f"{ROLLOUT}.enforce_eager", "False", "enforce_eager", True, False),
    (f"{ROLLOUT}.max_num_seqs", "9", "max_num_seqs", 1024, 9),
    (f"{ROLLOUT}.max_num_batched_tokens", "4096", "max_num_batched_tokens", 8192, 4096),
    (f"{ROLLOUT}.enable_chunked_prefill", "False", "enable_chunked_prefill", True, False),
    (f"{ROLLOUT}.load_format", "safetensors", "load_format", "dummy", "safetensors"),
    (f"{ROLLOUT}.disable_log_stats", "False", "disable_log_stats", True, False),
    (f"{ROLLOUT}.max_model_len", "300", "max_model_len", 128, 300),
    ("trainer.seed", "7", "seed", None, 7),
    (f"{MODEL}.trust_remote_code", "True", "trust_remote_code", False, True),
    (f"{MODEL}.override_config.model_config", "{rope_theta:5}", "hf_overrides", {}, {"rope_theta": 5}),
    (f"{ROLLOUT}.engine_kwargs.vllm", "{block_size:64}", "block_size", None, 64),
]


@shows(*(key for key, *_ in KEYS))
@pytest.mark.parametrize(("key", "value", "argument", "default", "expected"), KEYS, ids=[key for key, *_ in KEYS])
def test_a_key_is_the_argument_of_vllm(argv, key, value, argument, default, expected):
    if argument != "seed":
        assert made(argv, CUDA).get(argument) == default
    assert made([*argv, f"{key}={value}"], CUDA)[argument] == expected


def test_on_a_cpu_no_prompt_is_split_over_passes(argv):
    small = [*argv, f"{ROLLOUT}.max_num_batched_tokens=64", f"{ROLLOUT}.max_num_seqs=8"]
    found = made(small, CPU)
    assert found["enable_chunked_prefill"] is False
    assert found["max_num_batched_tokens"] == found["max_model_len"] == 128
    assert made(small, CUDA)["max_num_batched_tokens"] == 64


PARTS = f"{ROLLOUT}.tensor_model_parallel_size"


@shows(PARTS)
def test_ranks_that_share_an_engine_are_its_parts_and_processes_of_the_machine(argv):
    found = made([*argv, f"{PARTS}=2", "trainer.n_gpus_per_node=4"])
    assert found["tensor_parallel_size"] == 2 and found["distributed_executor_backend"] == "mp"
    assert "distributed_executor_backend" not in made(argv)
    more = f"{ROLLOUT}.engine_kwargs.vllm={{distributed_executor_backend:ray}}"
    assert made([*argv, f"{PARTS}=2", "trainer.n_gpus_per_node=4", more])["distributed_executor_backend"] == "ray"


@pytest.mark.parametrize(("name", "expected"), [("vllm", 2), ("hf", 1)])
def test_an_engine_is_of_as_many_ranks_as_share_it(argv, name, expected):
    argv = [*argv, f"{PARTS}=2", "trainer.n_gpus_per_node=2", f"{ROLLOUT}.name={name}"]
    config = load("ppo", argv).config
    assert ranks_per_engine(config) == roles(config, RunSettings(CPU))["rollout"].ranks_per_share == expected


def test_the_ranks_of_a_machine_have_one_memory_on_a_cpu_and_each_its_own_on_gpus(argv):
    argv = [*argv, "trainer.n_gpus_per_node=2", "trainer.nnodes=4", f"{ROLLOUT}.gpu_memory_utilization=0.6"]
    assert made(argv, CPU)["gpu_memory_utilization"] == 0.3
    assert made(argv, CUDA)["gpu_memory_utilization"] == 0.6


KEYS_OF_SGLANG = [
    (f"{ROLLOUT}.gpu_memory_utilization", "0.3", "mem_fraction_static", 0.5, 0.3),
    (f"{ROLLOUT}.enforce_eager", "False", "disable_cuda_graph", True, False),
    (f"{ROLLOUT}.max_num_seqs", "9", "max_running_requests", 1024, 9),
    (f"{ROLLOUT}.max_num_batched_tokens", "4096", "max_prefill_tokens", 8192, 4096),
    (f"{ROLLOUT}.max_num_batched_tokens", "4096", "chunked_prefill_size", 8192, 4096),
    (f"{ROLLOUT}.enable_chunked_prefill", "False", "chunked_prefill_size", 8192, -1),
    (f"{ROLLOUT}.load_format", "safetensors", "load_format", "dummy", "safetensors"),
    (f"{ROLLOUT}.disable_log_stats", "False", "log_level", "error", "info"),
    (f"{ROLLOUT}.max_model_len", "300", "context_length", 136, 308),
    ("trainer.seed", "7", "random_seed", None, 7),
    (f"{MODEL}.trust_remote_code", "True", "trust_remote_code", False, True),
    (f"{MODEL}.override_config.model_config", "{rope_theta:5}", "json_model_override_args", "{}", '{"rope_theta": 5}'),
    (f"{ROLLOUT}.engine_kwargs.sglang", "{max_total_tokens:64}", "max_total_tokens", None, 64),
    (f"{ROLLOUT}.engine_kwargs.sglang.attention_backend", "triton", "attention_backend", "torch_native", "triton"),
]


def made_for_sglang(argv: list[str], device: torch.device = CPU) -> dict[str, Any]:
    loaded = load("ppo", [*argv, f"{ROLLOUT}.name=sglang"])
    run = RunSettings(device, seed=loaded.config.trainer.seed, user_keys=loaded.user_keys)
    return sglang_training_arguments(loaded.config, run, torch.bfloat16).for_sglang()


@shows(*(key for key, *_ in KEYS_OF_SGLANG if "sglang." in key))
@pytest.mark.parametrize(
    ("key", "value", "argument", "default", "expected"),
    KEYS_OF_SGLANG,
    ids=[f"{a}-{c}" for a, _, c, *_ in KEYS_OF_SGLANG],
)
def test_a_key_is_the_argument_of_sglang(argv, key, value, argument, default, expected):
    if argument != "random_seed":
        assert made_for_sglang(argv).get(argument) == default
    assert made_for_sglang([*argv, f"{key}={value}"])[argument] == expected


def test_sglang_computes_in_the_wanted_format_and_chooses_its_kernels_on_a_gpu(argv):
    found = made_for_sglang([*argv, "data.tokenizer=elsewhere"], CUDA)
    assert found["dtype"] == "bfloat16" and found["device"] == "cuda" and found["tokenizer_path"] == "elsewhere"
    assert "attention_backend" not in found and "sampling_backend" not in found
    assert found["enable_memory_saver"] and found["enable_weights_cpu_backup"]
    assert made_for_sglang(argv, CPU)["enable_memory_saver"] is False
    assert made_for_sglang([*argv, f"{ROLLOUT}.free_cache_engine=False"], CUDA)["enable_memory_saver"] is False


def test_no_two_ranks_draw_the_same_numbers_with_sglang(argv, monkeypatch):
    monkeypatch.setattr(Ranks, "rank", 3)
    assert made_for_sglang([*argv, "trainer.seed=7"])["random_seed"] == 10


def test_generation_hands_its_keys_to_sglang_and_reads_the_models_files(argv, tmp_path):
    argv = [
        f"data.path={tmp_path}/rows.parquet", f"model.path={tmp_path}/model", "rollout.name=sglang",
        "rollout.max_num_seqs=7", "rollout.max_num_batched_tokens=64", "rollout.prompt_length=20",
        "rollout.response_length=30", "rollout.gpu_memory_utilization=0.2", "rollout.enforce_eager=False",
        "trainer.seed=3",
    ]  # fmt: skip
    config = load("generate", argv).config
    source = ModelSource(config.model.path, dtype=torch.bfloat16)
    found = sglang_generation_arguments(config, RunSettings(CPU, seed=3), source).for_sglang()
    wanted = {"max_running_requests": 7, "max_prefill_tokens": 64, "context_length": 58, "dtype": "bfloat16",
              "random_seed": 3, "load_format": "auto", "mem_fraction_static": 0.2, "disable_cuda_graph": False,
              "enable_memory_saver": False}  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted


@shows(f"{ROLLOUT}.free_cache_engine")
def test_the_cache_is_freed_where_vllm_can_free_it(argv):
    assert made(argv, CUDA)["enable_sleep_mode"] is True
    assert made(argv, CPU)["enable_sleep_mode"] is False
    assert made([*argv, f"{ROLLOUT}.free_cache_engine=False"], CUDA)["enable_sleep_mode"] is False


class Trainer:
    """As much of a trainer as the choice of a format reads."""

    class options:  # noqa: N801
        compute_dtype = torch.float16


@shows(f"{ROLLOUT}.dtype", f"{ROLLOUT}.name")
@pytest.mark.parametrize(
    ("overrides", "device", "expected"),
    [
        ([], CUDA, torch.bfloat16),
        ([], CPU, torch.float32),  # nobody asked for bf16, and it is slower
        ([f"{ROLLOUT}.dtype=bfloat16"], CPU, torch.bfloat16),
        ([f"{ROLLOUT}.dtype=float32"], CUDA, torch.float32),
        ([f"{ROLLOUT}.dtype=auto"], CPU, torch.float16),  # what the trainer computes in
        ([f"{ROLLOUT}.name=hf"], CUDA, torch.float16),
    ],
)
def test_the_format_is_the_rollouts_own_or_the_trainers(argv, overrides, device, expected):
    loaded = load("ppo", [*argv, *overrides])
    assert engine_dtype(loaded.config, RunSettings(device, user_keys=loaded.user_keys), Trainer()) == expected


@shows(
    "rollout.name", "rollout.gpu_memory_utilization", "rollout.enforce_eager", "rollout.tensor_model_parallel_size",
    command="generate",
)  # fmt: skip
def test_generation_hands_its_keys_to_vllm_and_reads_the_models_files(argv, tmp_path):
    argv = [
        f"data.path={tmp_path}/rows.parquet", f"model.path={tmp_path}/model", "rollout.name=vllm",
        "rollout.max_num_seqs=7", "rollout.max_num_batched_tokens=64", "rollout.prompt_length=20",
        "rollout.response_length=30", "rollout.gpu_memory_utilization=0.2", "rollout.enforce_eager=False",
        "model.trust_remote_code=True", "trainer.seed=3", "rollout.tensor_model_parallel_size=2",
        "trainer.n_gpus_per_node=2",
    ]  # fmt: skip
    config = load("generate", argv).config
    source = ModelSource(config.model.path, dtype=torch.bfloat16, trust_remote_code=True)
    found = vllm_generation_arguments(config, RunSettings(CPU, seed=3), source).for_vllm()
    wanted = {"max_num_seqs": 7, "max_num_batched_tokens": 64, "max_model_len": 50, "dtype": "bfloat16", "seed": 3,
              "trust_remote_code": True, "load_format": "auto", "gpu_memory_utilization": 0.1,
              "enforce_eager": False, "tensor_parallel_size": 2}  # fmt: skip
    assert wanted.items() <= found.items()


def test_what_ends_a_response_is_known_without_the_model(tiny_model_dir, tmp_path):
    facts = ModelFacts.of(ModelSource(str(tiny_model_dir)))
    assert facts.config.vocab_size > 256 and facts.generation_config.eos_token_id == 1
    facts.config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert ModelFacts.of(ModelSource(str(tmp_path))).generation_config.eos_token_id == 1
