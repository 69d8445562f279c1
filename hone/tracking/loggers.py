"""Where metrics go. Every run writes metrics.jsonl; the others are adapters of a few lines over their packages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hone.disk import naming
from hone.tracking.console import print_step
from hone.tracking.strict_json import dumps

Metrics = Mapping[str, float]


class Logger(Protocol):
    def log(self, metrics: Metrics, step: int) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line per step; a resumed run first drops the lines of steps that it is going to do again."""

    def __init__(self, path: Path, first_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _lines(path) if line.get("step", 0) < first_step]
        temporary = path.with_suffix(".tmp")
        with naming(temporary):
            temporary.write_text("".join(dumps(line) + "\n" for line in kept), encoding="utf-8")
        temporary.replace(path)
        self.steps = {line.get("step") for line in kept}
        self.path, self.file = path, path.open("a", encoding="utf-8")

    def log(self, metrics: Metrics, step: int) -> None:
        with naming(self.path):
            self.file.write(dumps({"step": step, **metrics}) + "\n")
            self.file.flush()

    def close(self) -> None:
        with naming(self.path):
            self.file.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines; a run that was killed while writing leaves half a line behind."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


class Console:
    def log(self, metrics: Metrics, step: int) -> None:
        print_step(metrics, step)

    def close(self) -> None:
        """Nothing is held."""


class TensorBoard:
    def __init__(self, project: str, experiment: str, directory: Path, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, metrics: Metrics, step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    def __init__(self, project: str, experiment: str, directory: Path, config: dict[str, Any]) -> None:
        import wandb

        self.run = wandb.init(project=project, name=experiment, dir=str(directory), config=config)

    def log(self, metrics: Metrics, step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


class SwanLab:
    def __init__(self, project: str, experiment: str, directory: Path, config: dict[str, Any]) -> None:
        import swanlab

        self.swanlab = swanlab
        logdir = str(directory / "swanlab")
        swanlab.init(project=project, experiment_name=experiment, logdir=logdir, config=config)

    def log(self, metrics: Metrics, step: int) -> None:
        self.swanlab.log(dict(metrics), step=step)

    def close(self) -> None:
        self.swanlab.finish()


class MLflow:
    def __init__(self, project: str, experiment: str, directory: Path, config: dict[str, Any]) -> None:
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment(project)
        mlflow.start_run(run_name=experiment)
        mlflow.log_dict(config, "config.yaml")

    def log(self, metrics: Metrics, step: int) -> None:
        # Metric names of mlflow know no "@".
        self.mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        self.mlflow.end_run()


ADAPTERS: dict[str, Callable[[str, str, Path, dict[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "swanlab": SwanLab,
    "mlflow": MLflow,
}


class Tracker:
    """All loggers of a run.

    done:      training steps that the checkpoint has behind it; lines of later steps are dropped, to be written again
    last_line: the metrics of step `done`, logged if the run was killed between its checkpoint and its line
    """

    def __init__(
        self,
        names: list[str],
        *,
        project: str,
        experiment: str,
        directory: Path,
        config: dict[str, Any],
        done: int = 0,
        last_line: Metrics | None = None,
    ) -> None:
        lines = JsonLines(directory / "metrics.jsonl", first_step=done + 1 if done else 0)
        self.loggers: list[Logger] = [lines]
        for name in names:
            self.loggers.append(
                Console() if name == "console" else ADAPTERS[name](project, experiment, directory, config)
            )
        if last_line and done not in lines.steps:
            self.log(last_line, done)

    def log(self, metrics: Metrics, step: int) -> None:
        for logger in self.loggers:
            logger.log(metrics, step)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()
