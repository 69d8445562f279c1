"""`hone demo`: the whole path on a laptop, as ordinary commands that are printed, run, and kept when they are done.

Nothing here trains or scores: every figure is read from what hone's own commands wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hone.cli import demo_calculator
from hone.cli.demo_stages import Algorithm, Engine, Plan, Stage, Task, stages
from hone.errors import UserError
from hone.tracking.console import console

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
