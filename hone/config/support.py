"""Which options this build can act on. An option whose capability is not built is refused, never ignored.

`NOT_BUILT` is the one table: building a capability means deleting its row, or adding a value to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from .problems import Problem
from .schema.base import Node
from .schema.fsdp import Dtype
from .schema.optim import MegatronOptimKeys
from .tree import Tree, get

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"


@dataclass(frozen=True)
class NotBuilt:
    """`works` are the values of `key` that this build acts on. With `when`, the row only speaks while that key has
    one of those values. `instead` says what to do when setting the first working value is not the answer."""

    key: str
    works: tuple[Any, ...]
    reason: str
    when: tuple[str, tuple[Any, ...]] | None = None
    instead: str = ""

    def refuses(self, tree: Tree) -> bool:
        speaks = self.when is None or get(tree, self.when[0]) in self.when[1]
        return speaks and get(tree, self.key) not in self.works

    def problem(self, tree: Tree) -> Problem:
        expected = " or ".join(hydra_text(value) for value in self.works[:6]) + (" ..." if len(self.works) > 6 else "")
        fix = self.instead or f"set {self.key}={hydra_text(self.works[0])}"
        wrong = f"{hydra_text(get(tree, self.key))} is not available in this build ({self.reason})"
        return Problem(self.key, wrong, expected, fix, (self.when[0],) if self.when else ())


def hydra_text(value: Any) -> str:
    """A value as it is written in an override."""
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_text(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{hydra_text(v)}" for k, v in value.items()) + "}"
    return "null" if value is None else str(value)


def unsupported(command: str, config: Node) -> Iterator[Problem]:
    """A problem for every option of the configuration that this build cannot act on."""
    tree = config.model_dump(by_alias=True)
    for row in NOT_BUILT[command]:
        if row.refuses(tree):
            yield row.problem(tree)


def _except(choices: Any, *missing: str) -> tuple[str, ...]:
    return tuple(choice for choice in get_args(choices) if choice not in missing)


ENGINES, ONE_PROCESS = "only hone's own engine and vLLM's are built", "a rank computes whole sequences"
VLLM = (f"{ROLLOUT}.name", ("vllm",))
FLOATS = _except(Dtype, "fp16", "float16")
FP16 = "half precision needs loss scaling"
FSDP = ("fsdp", "fsdp2")


def _fsdp(prefix: str) -> tuple[NotBuilt, ...]:
    return (
        NotBuilt(f"{prefix}.model_dtype", FLOATS, FP16),
        NotBuilt(f"{prefix}.mixed_precision.param_dtype", FLOATS, FP16),
        NotBuilt(f"{prefix}.mixed_precision.reduce_dtype", FLOATS, FP16),
    )


def _optim(role: str) -> tuple[NotBuilt, ...]:
    """With FSDP, clip_grad is another name of grad_clip."""
    prefix, with_fsdp = f"{role}.optim", (f"{role}.strategy", FSDP)
    other = {"lr_decay_style": "lr_scheduler_type", "min_lr": "min_lr_ratio"}
    megatron = (
        NotBuilt(
            f"{prefix}.{name}", (field.default,), "only Megatron's optimiser reads it", with_fsdp,
            instead=f"use {other[name]} instead" if name in other else "",
        )
        for name, field in MegatronOptimKeys.model_fields.items() if name != "clip_grad"
    )  # fmt: skip
    reason = "the trainer's number of steps is used"
    return (
        NotBuilt(f"{prefix}.total_training_steps", (-1,), reason, instead="set trainer.total_training_steps"),
        *megatron,
    )


def _profiler(prefix: str) -> tuple[NotBuilt, ...]:
    return (
        NotBuilt(f"{prefix}.discrete", (False,), "profiling"),
        NotBuilt(f"{prefix}.all_ranks", (False,), "profiling"),
        NotBuilt(f"{prefix}.ranks", (None,), "profiling"),
    )


def _trained_model(prefix: str) -> tuple[NotBuilt, ...]:
    return (NotBuilt(f"{prefix}.use_shm", (False,), "files are read where they are"),)


_DATA = (
    NotBuilt("data.use_shm", (False,), "files are read where they are"),
    NotBuilt("data.custom_cls.path", (None,), "data set classes of your own"),
    NotBuilt("data.return_raw_input_ids", (False,), "rewards from models"),
    NotBuilt("data.return_full_prompt", (False,), "rewards from models"),
)
_ACTOR = (
    NotBuilt("actor_rollout_ref.hybrid_engine", (True,), "actor and rollout always share their devices"),
    NotBuilt(f"{ACTOR}.strategy", FSDP, "Megatron"),
    NotBuilt(f"{MODEL}.fused_kernel_options.impl_backend", ("torch",), "triton kernels",
             (f"{MODEL}.use_fused_kernels", (True,))),
    *_trained_model(MODEL),
    *_fsdp(f"{ACTOR}.fsdp_config"),
    *_optim(ACTOR),
    *_profiler(f"{ACTOR}.profiler"),
)  # fmt: skip
_REF = (
    NotBuilt(f"{REF}.strategy", FSDP, "Megatron"),
    *_fsdp(f"{REF}.fsdp_config"),
    *_profiler(f"{REF}.profiler"),
)
_ROLLOUT = (
    NotBuilt(f"{ROLLOUT}.name", ("hf", "vllm"), ENGINES),
    NotBuilt(f"{ROLLOUT}.tensor_model_parallel_size", (1,), "every rank has an engine of its own, on one device", VLLM),
    NotBuilt(f"{ROLLOUT}.use_fire_sampling", (False,), "vLLM draws all tokens of a response alike", VLLM,
             instead=f"set {ROLLOUT}.name=hf"),
    NotBuilt(f"{ROLLOUT}.stop", ([],), "responses end at the end token"),
    NotBuilt(f"{ROLLOUT}.engine_kwargs.sglang", ({"attention_backend": None},), ENGINES,
             instead=f"remove {ROLLOUT}.engine_kwargs.sglang"),
    NotBuilt(f"{ROLLOUT}.agent.custom_async_server.path", (None,), ENGINES),
)  # fmt: skip
_CRITIC = (
    NotBuilt("critic.strategy", FSDP, "Megatron"),
    *_trained_model("critic.model"),
    *_fsdp("critic.model.fsdp_config"),
    *_optim("critic"),
    *_profiler("critic.profiler"),
)
_REWARD = (
    NotBuilt("reward_model.enable", (False,), "rewards from models"),
    NotBuilt("reward_model.reward_manager", ("naive", "prime"), "other managers"),
    NotBuilt("reward_model.sandbox_fusion.url", (None,), "code sandboxes"),
    *_profiler("reward_model.profiler"),
)
_TRAINER = (
    NotBuilt("trainer.default_hdfs_dir", (None,), "remote folders", instead="set trainer.default_local_dir"),
    NotBuilt("trainer.remove_previous_ckpt_in_save", (False,), "it is deprecated",
             instead="set trainer.max_actor_ckpt_to_keep=1 and trainer.max_critic_ckpt_to_keep=1"),
    NotBuilt("trainer.del_local_ckpt_after_load", (False,), "checkpoints are never deleted on load"),
    NotBuilt("trainer.profile_steps", (None,), "profiling"),
    NotBuilt("trainer.controller_nsight_options", ({
        "trace": "cuda,nvtx,cublas,ucx", "cuda-memory-usage": "true", "cuda-graph-trace": "graph",
    },), "profiling", instead="remove trainer.controller_nsight_options"),
    NotBuilt("trainer.worker_nsight_options", ({
        "trace": "cuda,nvtx,cublas,ucx", "cuda-memory-usage": "true", "cuda-graph-trace": "graph",
        "capture-range": "cudaProfilerApi", "capture-range-end": None, "kill": "none",
    },), "profiling", instead="remove trainer.worker_nsight_options"),
)  # fmt: skip
_SFT = (
    NotBuilt("model.fsdp_config.model_dtype", FLOATS, FP16),
    NotBuilt("model.fsdp_config.mixed_precision.param_dtype", FLOATS, FP16),
    NotBuilt("model.fsdp_config.mixed_precision.reduce_dtype", FLOATS, FP16),
)
_GENERATE = (NotBuilt("rollout.name", ("hf", "vllm"), ENGINES),)

NOT_BUILT: dict[str, tuple[NotBuilt, ...]] = {
    "ppo": (*_DATA, *_ACTOR, *_REF, *_ROLLOUT, *_CRITIC, *_REWARD, *_TRAINER),
    "sft": _SFT,
    "generate": _GENERATE,
    "eval": (),
}
