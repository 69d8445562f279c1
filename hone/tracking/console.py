"""What a person sees: notices, progress bars, one line a step."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(highlight=False, soft_wrap=True)

# What a step's line shows, in this order, where a run has it.
SHOWN = {
    "critic/score/mean": "score",
    "train/loss": "loss",
    "val/loss": "val loss",
    "critic/vf_loss": "vf_loss",
    "actor/entropy": "entropy",
    "actor/grad_norm": "grad",
    "train/grad_norm": "grad",
    "actor/kl_loss": "kl",
    "response_length/mean": "length",
    "timing_s/step": "seconds",
    "perf/throughput": "tok/s",
}


def set_up_logging() -> None:
    """Sends hone's notices to the console, and keeps transformers' own chatter out of it."""
    handler = RichHandler(console=console, show_path=False, show_time=False, markup=False)
    logger = logging.getLogger("hone")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def progress_bar() -> Progress:
    """A bar on a terminal; elsewhere the step lines are the progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal)


def print_step(metrics: Mapping[str, float], step: int) -> None:
    parts = [f"{label} {metrics[name]:.4g}" for name, label in SHOWN.items() if name in metrics]
    validation = [
        f"{name.removeprefix('val-core/')} {v:.4g}" for name, v in metrics.items() if name.startswith("val-core/")
    ]
    console.print(f"step {step}  " + "  ".join([*parts, *validation]))
