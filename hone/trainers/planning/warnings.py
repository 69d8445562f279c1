"""What will not go well, and which keys help."""

from __future__ import annotations

from collections.abc import Iterator

from hone.trainers.planning.memory import ACTIVATIONS, CACHE, GATHERED, WHOLE_OPTIMISER, WHOLE_WEIGHTS
from hone.trainers.planning.plan import Plan

GIB = 2**30
REMEDIES = {
    ACTIVATIONS: "set enable_gradient_checkpointing=True, use_fused_kernels=True, or fewer tokens in a micro-batch",
    CACHE: "lower rollout.max_num_seqs or data.max_response_length",
    GATHERED: "set reshard_after_forward=True in fsdp_config",
    WHOLE_WEIGHTS: "set model_dtype=bf16 in fsdp_config, or use LoRA",
    WHOLE_OPTIMISER: "leave optimizer out of checkpoint.save_contents, or use LoRA",
    "optimiser": "use more ranks, optimizer_offload, an 8-bit optimiser or LoRA",
    "weights": "use more ranks, model_dtype=bf16 or param_offload",
    "gradients": "use more ranks, model_dtype=bf16 or LoRA",
}
OTHERWISE = "use more ranks"


def warnings_of(plan: Plan) -> Iterator[str]:
    yield from _memory(plan)
    yield from _host(plan)
    yield from _disk(plan)
    for phase in plan.phases:
        if phase.unknown:
            why = "what this model computes depends on its data"
            yield f"{phase.name}: activations are not counted, since {why} ({phase.unknown})"


def _memory(plan: Plan) -> Iterator[str]:
    memory, phase = plan.machine.memory, plan.largest
    if memory is None or (plan.fits and not plan.tight):
        return
    part = max(phase.device, key=lambda name: phase.device[name])
    what = "nearly all of" if plan.fits else "more than"
    who = "a rank" if plan.machine.kind == "cuda" else f"{plan.places.ranks_per_node} rank(s) of a machine"
    yield (
        f"{phase.name}: {who} needs about {plan.needed / GIB:.1f} GiB, {what} the {memory / GIB:.1f} GiB that there "
        f"are. Most of it is {part}: {REMEDIES.get(part, OTHERWISE)}"
    )


def _host(plan: Plan) -> Iterator[str]:
    there = plan.machine.host
    if there is not None and plan.host_needed > there:
        yield (
            f"what is offloaded takes about {plan.host_needed / GIB:.1f} GiB of CPU memory on a machine, and there are "
            f"{there / GIB:.1f} GiB"
        )


def _disk(plan: Plan) -> Iterator[str]:
    disk = plan.disk
    if disk.needed > disk.free:
        yield (
            f"the run writes about {disk.needed / GIB:.1f} GiB, and {disk.folder} has {disk.free / GIB:.1f} GiB left: "
            "keep fewer checkpoints (trainer.max_actor_ckpt_to_keep and its kin), save less often (trainer.save_freq), "
            "or save smaller ones (checkpoint.save_contents)"
        )
