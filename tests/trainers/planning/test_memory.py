"""What a plan says of memory is what a run holds: bytes that are kept exactly, peaks within a few per cent."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hone.cli import demo
from hone.cli.main import main
from hone.cluster import LocalExecutor
from hone.config import load
from hone.trainers.planning import tracing
from hone.trainers.planning.memory import ACTIVATIONS, CACHE
from hone.trainers.planning.passes import Micro
from hone.trainers.planning.plan import Plan
from hone.trainers.planning.tracing import Tracer
from hone.trainers.ppo import PPOTrainer
from hone.trainers.sft import SFTTrainer
from hone.training.engine import TorchEngine
from hone.training.outputs import ForwardOptions
from hone.training.peak_memory import PeakMemory
from hone.workers.rollout import RolloutWorker
from tests.models_of_families import tiny
from tests.tiny import build_tiny_model
from tests.trainers.runs import ACTOR, MODEL, ROLLOUT, Stage

Planner = Callable[..., Plan]
LONGEST = 40  # of the prompts, which are close to it
PACKED = [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True"]
BF16 = [f"{ACTOR}.fsdp_config.model_dtype=bf16", f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16"]

RUNS: dict[str, tuple[str, list[str]]] = {
    "grpo": ("grpo", PACKED),
    "ppo": ("gae", PACKED),
    "padded": ("grpo", []),
    "reference": ("grpo", [*PACKED, f"{ACTOR}.use_kl_loss=True"]),
    "exact kl": ("grpo", [*PACKED, f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"]),
    "checkpointing": ("grpo", [*PACKED, f"{MODEL}.enable_gradient_checkpointing=True"]),
    "fused": ("grpo", [*PACKED, f"{MODEL}.use_fused_kernels=True", f"{ACTOR}.entropy_coeff=0.01"]),
    "entropy": ("grpo", [*PACKED, f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.entropy_checkpointing=True"]),
    "lora": ("grpo", [*PACKED, f"{MODEL}.lora_rank=8", f"{ACTOR}.use_kl_loss=True"]),
    "bf16": ("grpo", [*PACKED, *BF16]),
    "mixed precision": ("grpo", [*PACKED, BF16[1]]),
    "sgd": ("grpo", [*PACKED, f"{ACTOR}.optim.optimizer=SGD"]),
    "amsgrad": ("grpo", [*PACKED, f"{ACTOR}.optim.override_optimizer_config={{amsgrad:True}}"]),
    "shared prompts": ("grpo", [*PACKED, f"{ACTOR}.use_prefix_grouper=True", f"{ACTOR}.use_dynamic_bsz=True",
                                f"{ACTOR}.ppo_max_token_len_per_gpu=300"]),
}  # fmt: skip
SIZES = [
    "data.train_batch_size=16",
    f"{ACTOR}.ppo_mini_batch_size=8",
    f"{ROLLOUT}.n=4",
    f"data.max_prompt_length={LONGEST}",
    "data.max_response_length=24",
    f"{ROLLOUT}.ignore_eos=True",
    "data.val_files=null",
]


class Measured:
    """Of a run: peaks of its phases, as bytes of tensors, and the engines with all that they hold."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.caches: list[int] = []

    def note(self, phase: str, peak: int) -> None:
        self.peaks[phase] = max(self.peaks.get(phase, 0), peak)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Measured:
    """In one thread, as PeakMemory sees no others."""
    found = Measured()
    step, forward, rollout = TorchEngine._watched_step, TorchEngine.forward, RolloutWorker.rollout

    def role(self: TorchEngine) -> str:
        value = "Token" in type(self.model).__name__
        return "critic" if value else "actor" if self.optimizer is not None else "ref"

    def noted_step(self: TorchEngine, *args: Any, **kwargs: Any) -> Any:
        with PeakMemory() as memory:
            result = step(self, *args, **kwargs)
        if self.optimizer is not None and self.optimizer.state:  # not the step that makes the state
            found.note(f"update {role(self)}", memory.peak)
        return result

    def noted_forward(self: TorchEngine, *args: Any, **kwargs: Any) -> Any:
        with PeakMemory() as memory:
            result = forward(self, *args, **kwargs)
        found.note({"critic": "values", "actor": "log-probs", "ref": "reference"}[role(self)], memory.peak)
        return result

    def noted_rollout(self: RolloutWorker, tasks: Any) -> Iterator[Any]:
        self.free_cache = False
        with PeakMemory() as memory:
            results = list(rollout(self, tasks))
        found.note("validate" if tasks[0].sampling.temperature == 0 else "generate", memory.peak)
        found.caches.append(self.engine.cache.nbytes)
        self.engine.cache.clear()
        return iter(results)

    monkeypatch.setattr(TorchEngine, "_watched_step", noted_step)
    monkeypatch.setattr(TorchEngine, "forward", noted_forward)
    monkeypatch.setattr(RolloutWorker, "rollout", noted_rollout)
    return found


def working(plan: Plan, phase: str) -> int:
    """Bytes that come and go with a phase; gradients come with an update."""
    found = next(p for p in plan.phases if p.name == phase)
    role = phase.removeprefix("update ")
    gradients = sum(m.storage.gradients for m in plan.models if m.role == role)
    return found.device.get(ACTIVATIONS, 0) + found.device.get(CACHE, 0) + gradients


def held(engine: TorchEngine) -> dict[str, int]:
    optimizer = engine.optimizer
    state = [] if optimizer is None else [v for s in optimizer.state.values() for v in s.values()]
    return {
        "weights": sum(p.nbytes for p in engine.model.parameters()),
        "gradients": sum(p.nbytes for p in engine.model.parameters() if p.grad is not None),
        "optimizer": sum(v.nbytes for v in state if isinstance(v, torch.Tensor)),
        "parameters": engine.num_parameters,
        "trained": engine.num_trained if optimizer is not None else 0,
    }


@pytest.mark.parametrize("name", [n if n in ("grpo", "ppo") else pytest.param(n, marks=pytest.mark.slow) for n in RUNS])
def test_a_run_holds_what_its_plan_says(name: str, stage: Stage, plan: Planner, measured: Measured) -> None:
    estimator, more = RUNS[name]
    argv = stage.ppo("run", *SIZES, *more, estimator=estimator)
    planned = plan("ppo", argv)
    trainer = PPOTrainer(load("ppo", argv), LocalExecutor())
    trainer.fit()
    for model in planned.models:
        engine = trainer.setup.groups[model.role].worker.engine  # type: ignore[attr-defined]
        said = {part: getattr(model.storage, part) for part in held(engine)}
        assert said == held(engine), model.role
    assert planned.phases[0].device[CACHE] == measured.caches[0]
    assert set(measured.peaks) <= {phase.name for phase in planned.phases}
    for phase, peak in measured.peaks.items():
        assert 0.98 * peak <= working(planned, phase) <= 1.25 * peak, (phase, peak, working(planned, phase))


def test_fine_tuning_holds_what_its_plan_says(stage: Stage, plan: Planner, measured: Measured) -> None:
    argv = stage.sft("run", "model.use_remove_padding=True", "data.micro_batch_size_per_gpu=8")
    planned = plan("sft", argv)
    trainer = SFTTrainer(load("sft", argv), LocalExecutor())
    trainer.fit()
    engine = trainer.model.worker.engine  # type: ignore[attr-defined]
    assert {part: getattr(planned.models[0].storage, part) for part in held(engine)} == held(engine)
    phase = planned.phases[0]
    said = phase.device[ACTIVATIONS] + planned.models[0].storage.gradients
    # Rows are shorter than they may be, and of the longest all but one token count as trained.
    assert measured.peaks["update actor"] <= said <= 5 * measured.peaks["update actor"]


OPTIONS = {
    "plain": ForwardOptions(),
    "fused": ForwardOptions(memory=replace(ForwardOptions().memory, chunk=5)),
    "padded": ForwardOptions(packed=False),
    "bf16": ForwardOptions(compute_dtype=torch.bfloat16),
}
MICRO = Micro([6, 6, 9], [30, 30, 29], [0, 0, 1])


def deep(family: str, layers: int, *, checkpointing: bool = False) -> Any:
    model = tiny(family, layers=layers)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options", "checkpointing"),
    [
        ("qwen3", "plain", False),
        ("qwen3", "fused", True),
        ("qwen2", "bf16", False),
        ("llama", "padded", True),
        ("gemma2", "plain", False),
        ("mistral", "fused", False),
    ],
)
def test_a_deep_model_is_told_from_a_few_layers(
    family: str, options: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same model run with all of its layers and all chunks of its log-probs."""
    want, watch = frozenset({"logprobs"}), frozenset({"entropy"})

    def peaks() -> list[int]:
        found = []
        for only in (False, True):
            tracer = Tracer(deep(family, 6, checkpointing=checkpointing))
            found.append(tracer.update(OPTIONS[options], MICRO, want, watch, only=only).total)
        found.append(tracer.scoring(OPTIONS[options], MICRO, want).total)
        found += [tracer.generation(torch.float32, [MICRO], piece)[0] for piece in (100, 4)]  # prompts whole, and split
        return found

    told = peaks()  # the second is a bound: where gradients come as activations go, the peak is only known to lie below
    monkeypatch.setattr(tracing, "FEW_LAYERS", 6)
    monkeypatch.setattr(tracing, "FEW_CHUNKS", 100)
    exact = peaks()
    assert [told[0], *told[2:]] == pytest.approx([exact[0], *exact[2:]], rel=0.05)
    assert 0.95 * exact[1] <= told[1] <= told[0]


def test_of_a_deep_model_without_data_and_with_data_the_same_is_measured() -> None:
    want = frozenset({"logprobs"})
    model = tiny("qwen3").train()
    module = tracing.OutputModule(model, ForwardOptions())
    batch, trained = MICRO.batch(64)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with PeakMemory() as memory:
        module(batch, trained, want)["logprobs"].sum().backward()
    told = Tracer(tiny("qwen3")).update(ForwardOptions(), MICRO, want, frozenset(), only=False).total
    assert told == pytest.approx(memory.peak, rel=0.01)


RUN_AND_MEASURE = """
import resource, sys
from hone.cli.main import main
try:
    main(["ppo", *sys.argv[1:]])
finally:
    print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_process_takes_what_its_plan_says(
    estimator: str, tmp_path: Path, arithmetic_dir: Path, plan: Planner
) -> None:
    """As the system counts it, libraries included, with a model that is large beside them."""
    stage = Stage(tmp_path, build_tiny_model(tmp_path / "model", hidden=1024, layers=8), arithmetic_dir)
    argv = stage.ppo("run", *SIZES, *PACKED, "trainer.save_freq=-1", estimator=estimator)
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_MEASURE, *argv], capture_output=True, text=True, timeout=300, check=True
    )
    peak = int(done.stdout.rpartition("PEAK")[2])
    assert plan("ppo", argv).needed == pytest.approx(peak, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", list(demo.Algorithm))
def test_the_demo_holds_what_its_plan_says(
    tmp_path: Path, measured: Measured, plan: Planner, algorithm: demo.Algorithm
) -> None:
    """Its reinforcement learning at full size, with the model that fine-tuning begins with: two steps, validated."""
    short = replace(demo.FULL, rl_steps=2)
    for stage in itertools.islice(demo.stages(algorithm, 0, 1, short, tmp_path), 2):
        with pytest.raises(SystemExit, match="0"):
            main(stage.command)
    (argv,) = (stage.command[1:] for stage in demo.stages(algorithm, 0, 1, short, tmp_path) if stage.name == "rl")
    argv = [*argv, f"actor_rollout_ref.model.path={tmp_path}/model", "trainer.critic_warmup=0"]
    planned = plan("ppo", argv)
    PPOTrainer(load("ppo", argv), LocalExecutor()).fit()
    told = {phase.name: working(planned, phase.name) for phase in planned.phases if phase.name in measured.peaks}
    assert len(told) == (5 if algorithm is demo.Algorithm.ppo else 3)
    for phase, peak in measured.peaks.items():
        assert 0.75 * peak <= told[phase] <= 1.25 * peak, (phase, peak, told)
