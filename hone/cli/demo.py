"""`hone demo`: the whole path on a laptop, as ordinary commands that are printed, run, and kept when they are done.

Nothing here trains or scores: every figure is read from what hone's own commands wrote.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hone.cli import demo_calculator
from hone.errors import UserError
from hone.tracking.console import console


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


FULL, SHORT = Plan(), Plan(sft_steps=60, rl_steps=2)
CALCULATOR = Plan(sft_steps=1000, rl_steps=30)
app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


def run(argv: list[str]) -> None:
    app(args=argv, prog_name="hone demo", standalone_mode=False)


@app.command()
def demo(
    algorithm: Annotated[Algorithm, typer.Option(help="grpo, or ppo with a critic and GAE")] = Algorithm.grpo,
    task: Annotated[
        Task, typer.Option(help="arithmetic in the model's head, or products with a calculator to call")
    ] = Task.arithmetic,
    seed: Annotated[int, typer.Option(help="seed of data, weights and sampling", min=0)] = 0,
    ranks: Annotated[
        int, typer.Option(help="processes that train together by reinforcement; several need Ray", min=1)
    ] = 1,
    engine: Annotated[
        Engine, typer.Option(help="what generates: hone's own hf, or vllm, which has to be installed")
    ] = Engine.hf,
    output: Annotated[
        Path | None, typer.Option(help="run directory [default: runs/demo-<algorithm>-<seed>]", file_okay=False)
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="a few steps of everything: shows that it runs, learns little")
    ] = False,
) -> None:
    """Makes word problems and a tiny model, fine-tunes it, trains it by reinforcement, measures before and after."""
    _require(engine)
    plan = SHORT if short else FULL if task is Task.arithmetic else CALCULATOR
    kind = f"{'-short' if short else ''}{f'-{ranks}-ranks' if ranks > 1 else ''}"
    kind += "" if engine is Engine.hf else f"-{engine.value}"
    name = algorithm.value if task is Task.arithmetic else f"{task.value}-{algorithm.value}"
    directory = output or Path("runs") / f"demo-{name}-{seed}{kind}"
    directory.mkdir(parents=True, exist_ok=True)
    planned = list(stages(algorithm, seed, ranks, plan, directory, task, engine))
    _claim(directory, [stage.text for stage in planned])
    records = [_run_stage(stage, directory) for stage in planned]
    before, after = _accuracies(task, directory)
    summary = {"accuracy_before": before, "accuracy_after": after, "stages": records}
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    _show(summary, directory, plan)


def _require(engine: Engine) -> None:
    """Said here, not by the first stage that generates, which comes after minutes."""
    if engine is Engine.vllm and find_spec("vllm") is None:
        raise UserError("--engine vllm: vllm is not installed; docs/rollout.md says how, also for a CPU")


def _accuracies(task: Task, directory: Path) -> tuple[float, float]:
    if task is Task.calculator:
        return demo_calculator.accuracies(directory)
    return _accuracy(directory / "before.json"), _accuracy(directory / "after.json")


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


def _claim(directory: Path, commands: list[str]) -> None:
    """A directory belongs to one list of commands: a stage would otherwise go on from what other commands left."""
    file = directory / "commands.json"
    if not file.is_file():
        _write(file, commands)
    elif json.loads(file.read_text()) != commands:
        raise UserError(f"{directory} holds a demo of other commands; delete it, or choose another --output")


def _run_stage(stage: Stage, directory: Path) -> dict[str, Any]:
    """Runs the command unless it has finished before and its output is still there; gives name, seconds and speed."""
    done = directory / "stages" / f"{stage.name.replace(' ', '_')}.json"
    console.print(f"\n$ {stage.text}", style="bold", markup=False)
    if done.is_file() and stage.output.exists():
        console.print("already done", style="dim")
        return json.loads(done.read_text())
    begun = time.perf_counter()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    result = subprocess.run([sys.executable, "-m", "hone", *stage.command], env=environment, check=False)
    if result.returncode:
        raise UserError(
            f"the stage {stage.name!r} failed (exit code {result.returncode}); its own message stands above"
        )
    record = {"name": stage.name, "seconds": round(time.perf_counter() - begun, 2)}
    record["tokens_per_second"] = _tokens_per_second(stage.figures)
    done.parent.mkdir(exist_ok=True)
    _write(done, record)
    return record


def _write(file: Path, content: Any) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(file)


def _tokens_per_second(figures: Path | None) -> float | None:
    """Tokens over seconds of a stage's own steps, without its start; None for stages that handle no tokens."""
    if figures is None:
        return None
    if figures.suffix == ".json":
        return round(json.loads(figures.read_text())["tokens_per_second"], 1)
    lines = [json.loads(line) for line in figures.read_text().splitlines()]
    steps = [line for line in lines if "timing_s/step" in line]
    return round(sum(s["perf/total_num_tokens"] for s in steps) / sum(s["timing_s/step"] for s in steps), 1)


def _accuracy(path: Path) -> float:
    metrics = json.loads(path.read_text())
    return next(value for name, value in metrics.items() if name.startswith("val-core/") and "/mean@" in name)


def _show(summary: dict[str, Any], directory: Path, plan: Plan) -> None:
    table = Table("stage", "seconds", "tokens/s")
    for stage in summary["stages"]:
        speed = stage["tokens_per_second"]
        table.add_row(stage["name"], f"{stage['seconds']:.1f}", "" if speed is None else f"{speed:,.0f}")
    total = sum(stage["seconds"] for stage in summary["stages"])
    table.add_row("all", f"{total:.1f}", "", style="bold")
    console.print()
    console.print(table)
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    console.print(
        f"accuracy on held-out problems: {before:.1%} before, {after:.1%} after reinforcement learning", style="bold"
    )
    measured = (directory / "responses_after.parquet").exists()
    where = {
        "data": "data/",
        "fine-tuned model": f"sft/global_step_{plan.sft_steps}/model/huggingface/",
        "trained model": f"rl/global_step_{plan.rl_steps}/actor/huggingface/",
        "metrics": "sft/metrics.jsonl, rl/metrics.jsonl",
        "sampled answers": "rl/rollouts/<step>.jsonl"
        + (", responses_before.parquet, responses_after.parquet" if measured else ""),
        "these figures": "summary.json",
    }
    for what, path in where.items():
        console.print(f"{what}: {directory}/{path}", markup=False)
