"""Every key of a model, its optimiser and its micro-batches reaches the engine that is built with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hone.config import load
from hone.config.tree import get
from hone.models.load import ModelSource
from hone.training.optimizer import build_optimizer
from hone.training.sharding import ShardOptions
from hone.workers import build, engine_parts, sft
from hone.workers.engine_parts import optimizer_of, schedule_of
from hone.workers.settings import RunSettings
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, REF, ROLLOUT, Stage

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CRITIC, TOTAL_STEPS = "critic", 10
COMMANDS = {"actor": "ppo", "ref": "ppo", "critic": "ppo", "sft": "sft"}
# What all runs here have, and what it takes for a key to be read.
BASE = {
    "actor": (),
    "ref": (f"{ACTOR}.use_kl_loss=True",),
    "critic": ("algorithm.adv_estimator=gae",),
    "sft": (),
}

Row = tuple[str, str, str, Any]  # key, value, where it arrives, and as what


def optimiser(section: str, kind: str) -> list[Row]:
    return [
        (f"{section}.optimizer", "Adam", "optimizer.name", "Adam"),
        (f"{section}.override_optimizer_config", "{amsgrad:true}", "optimizer.amsgrad", True),
        (f"{section}.lr", "0.25", "optimizer.lr", 0.25),
        (f"{section}.betas", "[0.5,0.6]", "optimizer.betas", (0.5, 0.6)),
        (f"{section}.eps", "0.125", "optimizer.eps", 0.125),
        (f"{section}.weight_decay", "0.75", "optimizer.weight_decay", 0.75),
        (f"{section}.lr_warmup_steps", "3", "engine.schedule.warmup_steps", 3),
        (f"{section}.min_lr_ratio", "0.2", "engine.schedule.min_ratio", 0.2),
        (f"{section}.num_cycles", "1.5", "engine.schedule.num_cycles", 1.5),
        (f"{section}.{kind}", "linear", "engine.schedule.kind", "linear"),
    ]


def sharding(section: str) -> list[Row]:
    layers = f"{section}.wrap_policy.transformer_layer_cls_to_wrap"
    return [
        (f"{section}.fsdp_size", "1", "shards.shard_size", 1),
        (f"{section}.reshard_after_forward", "False", "shards.reshard_after_forward", False),
        (f"{section}.forward_prefetch", "True", "shards.forward_prefetch", True),
        (layers, "[Layer]", "shards.layer_classes", ("Layer",)),
        (f"{section}.wrap_policy.min_num_params", "7", "shards.min_num_params", 7),
        (f"{section}.mixed_precision.reduce_dtype", "bf16", "shards.reduce_dtype", torch.bfloat16),
        (f"{section}.mixed_precision.param_dtype", "bf16", "engine.options.compute_dtype", torch.bfloat16),
        (f"{section}.model_dtype", "bf16", "source.dtype", torch.bfloat16),
    ]


def model(section: str) -> list[Row]:
    override = f"{section}.override_config"
    return [
        (f"{override}.model_config", "{attention_dropout:0.25}", "engine.model.config.attention_dropout", 0.25),
        (f"{override}.attn_implementation", "eager", "engine.model.config._attn_implementation", "eager"),
        (f"{override}.moe_config.freeze_moe_router", "True", "source.freeze_router", True),
        (f"{section}.enable_gradient_checkpointing", "True", "source.gradient_checkpointing", True),
        (f"{section}.trust_remote_code", "True", "source.trust_remote_code", True),
        (f"{section}.external_lib", "json", "source.external_lib", "json"),
        (f"{section}.use_remove_padding", "True", "engine.options.packed", True),
    ]


ROWS: dict[str, list[Row]] = {
    "actor": [
        *model(MODEL), *sharding(f"{ACTOR}.fsdp_config"), *optimiser(f"{ACTOR}.optim", "lr_scheduler_type"),
        (f"{ACTOR}.strategy", "fsdp2", "shards.strategy", "fsdp2"),
        (f"{ACTOR}.grad_clip", "0.375", "engine.grad_clip", 0.375),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu", "3", "engine.train.size", 3),
        (f"{ACTOR}.use_dynamic_bsz", "True", "dynamic.train", True),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", "700", "engine.train.max_tokens", 700),
        (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "5", "engine.scoring.size", 5),
        (f"{ROLLOUT}.log_prob_use_dynamic_bsz", "True", "dynamic.scoring", True),
        (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", "900", "engine.scoring.max_tokens", 900),
        (f"{ROLLOUT}.temperature", "0.5", "engine.options.temperature", 0.5),
        (f"{MODEL}.use_fused_kernels", "True", "fused", True),
    ],
    "ref": [
        *sharding(f"{REF}.fsdp_config"),
        (f"{REF}.strategy", "fsdp2", "shards.strategy", "fsdp2"),
        (f"{REF}.fsdp_config.param_offload", "True", "engine.offload.options.weights", True),
        (f"{REF}.log_prob_micro_batch_size_per_gpu", "5", "engine.scoring.size", 5),
        (f"{REF}.log_prob_use_dynamic_bsz", "True", "dynamic.scoring", True),
        (f"{REF}.log_prob_max_token_len_per_gpu", "900", "engine.scoring.max_tokens", 900),
    ],
    "critic": [
        *model("critic.model"), *sharding("critic.model.fsdp_config"), *optimiser("critic.optim", "lr_scheduler_type"),
        ("critic.strategy", "fsdp2", "shards.strategy", "fsdp2"),
        ("critic.model.fsdp_config.param_offload", "True", "engine.offload.options.weights", True),
        ("critic.model.fsdp_config.optimizer_offload", "True", "engine.offload.options.optimizer_state", True),
        ("critic.model.enable_activation_offload", "True", "engine.options.offload", True),
        ("critic.grad_clip", "0.375", "engine.grad_clip", 0.375),
        ("critic.ppo_micro_batch_size_per_gpu", "3", "engine.train.size", 3),
        ("critic.use_dynamic_bsz", "True", "dynamic.train", True),
        ("critic.ppo_max_token_len_per_gpu", "700", "engine.train.max_tokens", 700),
        ("critic.forward_micro_batch_size_per_gpu", "5", "engine.scoring.size", 5),
        ("critic.forward_max_token_len_per_gpu", "900", "engine.scoring.max_tokens", 900),
    ],
    "sft": [
        *model("model"), *sharding("model.fsdp_config"), *optimiser("optim", "lr_scheduler"),
        ("model.strategy", "fsdp", "shards.strategy", "fsdp"),
        ("model.fsdp_config.cpu_offload", "True", "engine.offload.options.optimizer_state", True),
        ("model.fsdp_config.offload_params", "True", "engine.offload.options.weights", True),
        ("model.use_fused_kernels", "True", "fused", True),
        ("optim.clip_grad", "0.375", "engine.grad_clip", 0.375),
        ("data.micro_batch_size_per_gpu", "3", "engine.train.size", 3),
        ("data.use_dynamic_bsz", "True", "dynamic.train", True),
        ("data.max_token_len_per_gpu", "700", "engine.train.max_tokens", 700),
    ],
}  # fmt: skip
CASES = [(role, *row) for role, rows in ROWS.items() for row in rows]


def argv_of(stage: Stage, role: str, *more: str) -> list[str]:
    """Formats of numbers are left to their defaults."""
    argv = (stage.sft if COMMANDS[role] == "sft" else stage.ppo)("run", *BASE[role], *more)
    formats = "mixed_precision.param_dtype=fp32"
    return [override for override in argv if not override.endswith(formats)]


def build_engine(stage: Stage, role: str, *more: str) -> SimpleNamespace:
    """The engine of a role, and what its model and its shards were asked for."""
    loaded = load(COMMANDS[role], argv_of(stage, role, *more))
    run = RunSettings(CPU, TOTAL_STEPS, user_keys=loaded.user_keys)
    seen: dict[str, Any] = {}

    def watching(load_model: Any) -> Any:
        return lambda source: (seen.update(source=source), load_model(source))[1]

    def watched_options(**how: Any) -> ShardOptions:
        seen["shards"] = ShardOptions(**how)
        return seen["shards"]

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(engine_parts, "ShardOptions", watched_options)
        patches.setattr("hone.models.load.freeze_routers", lambda model: None)  # the tiny model has none
        for module, name in ((build, "load_causal_lm"), (build, "load_value_model"), (sft, "load_causal_lm")):
            patches.setattr(module, name, watching(getattr(module, name)))
        engine = {
            "actor": lambda: build.actor_engine(loaded.config, run, None),
            "ref": lambda: build.reference_engine(loaded.config, run),
            "critic": lambda: build.critic_engine(loaded.config, run),
            "sft": lambda: sft.sft_engine(loaded.config, run),
        }[role]()
    source: ModelSource = seen["source"]
    group = engine.optimizer.param_groups[0] if engine.optimizer else {}
    settings = {name: value for name, value in group.items() if name != "params"}
    return SimpleNamespace(
        engine=engine,
        source=source,
        shards=seen["shards"],
        optimizer=SimpleNamespace(**settings, name=type(engine.optimizer).__name__),
        dynamic=SimpleNamespace(
            train=engine.train.max_tokens is not None, scoring=engine.scoring.max_tokens is not None
        ),
        fused=engine.options.memory.chunk is not None,
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path_factory.mktemp("built"), tiny_model_dir, arithmetic_dir)


@pytest.fixture(scope="module")
def built(stage: Stage) -> Mapping[str, tuple[SimpleNamespace, SimpleNamespace]]:
    """For each role, the engine of its defaults and one with all keys set."""
    return {
        role: (build_engine(stage, role), build_engine(stage, role, *(f"{key}={value}" for key, value, *_ in rows)))
        for role, rows in ROWS.items()
    }


@pytest.mark.parametrize(
    ("role", "key", "place", "expected"),
    [
        pytest.param(role, key, place, expected, marks=shows(key, command=COMMANDS[role]), id=f"{COMMANDS[role]}-{key}")
        for role, key, _, place, expected in CASES
    ],
)
def test_a_key_reaches_the_engine(
    built: Mapping[str, tuple[SimpleNamespace, SimpleNamespace]], role: str, key: str, place: str, expected: Any
) -> None:
    plain, changed = built[role]
    assert attrgetter(place)(changed) == expected
    assert _value(plain, place) != expected


def _value(found: SimpleNamespace, place: str) -> Any:
    try:
        return attrgetter(place)(found)
    except AttributeError:  # another optimiser has other settings
        return None


OPTIMISERS = {"ppo": (f"{ACTOR}.optim", "critic.optim"), "sft": ("optim",)}
SECTIONS = [(command, section) for command, sections in OPTIMISERS.items() for section in sections]


def optim_of(stage: Stage, command: str, section: str, *more: str) -> Any:
    config = load(command, argv_of(stage, "sft" if command == "sft" else "critic", *more)).config
    return attrgetter(section)(config)


@pytest.mark.parametrize(
    ("command", "section"),
    [pytest.param(c, s, marks=shows(f"{s}.lr_warmup_steps_ratio", command=c)) for c, s in SECTIONS],
)
def test_warm_up_may_be_a_share_of_all_steps(stage: Stage, command: str, section: str) -> None:
    optim = optim_of(stage, command, section, f"{section}.lr_warmup_steps_ratio=0.45")
    assert schedule_of(optim, "constant", total_steps=20).warmup_steps == 9


class Other(torch.optim.AdamW):
    """Another package's optimiser."""


@pytest.mark.parametrize(
    ("command", "section"), [pytest.param(c, s, marks=shows(f"{s}.optimizer_impl", command=c)) for c, s in SECTIONS]
)
def test_the_optimiser_comes_from_the_package_that_is_named(
    stage: Stage, command: str, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torchao.optim", SimpleNamespace(AdamW=Other))
    optim = optim_of(stage, command, section, f"{section}.optimizer_impl=torchao.optim")
    assert type(optimizer_of(nn.Linear(2, 2), optim)) is Other
    assert type(build_optimizer(nn.Linear(2, 2).parameters(), lr=1.0)) is torch.optim.AdamW


@shows("critic.model.fsdp_config.offload_policy", "actor_rollout_ref.actor.fsdp_config.offload_policy")
@pytest.mark.parametrize("role", ["actor", "critic"])
def test_the_offload_policy_is_the_sharders_and_leaves_nothing_to_move(stage: Stage, role: str) -> None:
    section = {"actor": f"{ACTOR}.fsdp_config", "critic": "critic.model.fsdp_config"}[role]
    strategy = {"actor": f"{ACTOR}.strategy", "critic": "critic.strategy"}[role]
    keys = [f"{section}.offload_policy=True", f"{section}.param_offload=True", f"{strategy}=fsdp2"]
    found = build_engine(stage, role, *keys)
    assert found.shards.cpu_policy and not found.engine.offload.options.weights


@shows(f"{ACTOR}.use_torch_compile")
def test_log_probs_are_compiled_on_a_gpu_unless_that_is_switched_off(stage: Stage) -> None:
    def compiled(device: torch.device, *more: str) -> bool:
        loaded = load("ppo", stage.ppo("run", *more))
        role = loaded.config.actor_rollout_ref
        run = RunSettings(device, user_keys=loaded.user_keys)
        network: Any = SimpleNamespace(config=None)
        return build._policy_options(loaded.config, run, network, role.actor.fsdp_config, "x", 1).compiled

    assert compiled(GPU) and not compiled(GPU, f"{ACTOR}.use_torch_compile=False") and not compiled(CPU)


@shows(f"{MODEL}.path", "critic.model.path")
@shows("model.partial_pretrain", command="sft")
@pytest.mark.parametrize(
    ("role", "key"), [("actor", f"{MODEL}.path"), ("critic", "critic.model.path"), ("sft", "model.partial_pretrain")]
)
def test_the_model_is_the_one_that_is_named(stage: Stage, tmp_path: Path, role: str, key: str) -> None:
    (tmp_path / "model").symlink_to(stage.model)
    assert build_engine(stage, role, f"{key}={tmp_path}/model").source.path == f"{tmp_path}/model"
    assert get(load(COMMANDS[role], argv_of(stage, role)).config.model_dump(), key) == str(stage.model)


PLACES = {"actor": f"{ACTOR}.", "ref": f"{REF}.", "critic": "critic.", "sft": ""}
SHARING = {role: f"{place}ulysses_sequence_parallel_size" for role, place in PLACES.items()}


@shows(*(SHARING[role] for role in ("actor", "ref", "critic")))
@shows(SHARING["sft"], command="sft")
@pytest.mark.parametrize("role", SHARING)
def test_so_many_ranks_share_a_sequence(stage: Stage, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.training.outputs.SequenceRanks", lambda size: None)  # there are no other ranks here
    packed = [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True"]
    many = [*(["model.use_remove_padding=True"] if role == "sft" else packed), "trainer.n_gpus_per_node=2"]
    assert build_engine(stage, role, *many).engine.options.sequence_ranks == 1
    assert build_engine(stage, role, *many, f"{SHARING[role]}=2").engine.options.sequence_ranks == 2
