"""Supervised fine-tuning: batches of demonstrations, one optimiser step each, over the assistant's tokens alone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from hone.algorithms import loss_weights
from hone.batch import Batch
from hone.cluster import Executor, Role
from hone.config import Loaded
from hone.config.schema.sft import SFTConfig
from hone.data.order import BatchOrder
from hone.data.sft import SFTDataset, SFTSample
from hone.models.load import load_tokenizer
from hone.tracking.console import progress_bar
from hone.tracking.loggers import Tracker
from hone.tracking.run_directory import write_config
from hone.tracking.timing import Timer
from hone.trainers.checkpoints import Checkpoints, due, finished_already, read_state
from hone.workers.settings import RunSettings
from hone.workers.sft import SFTWorker

logger = logging.getLogger(__name__)


class SFTTrainer:
    def __init__(self, loaded: Loaded, executor: Executor) -> None:
        config: SFTConfig = loaded.config
        self.loaded, self.config = loaded, config
        tokenizer = load_tokenizer(config.model.partial_pretrain, trust_remote_code=config.data.trust_remote_code)
        data, trainer = config.data, config.trainer
        self.train_data = _dataset(config, tokenizer, data.train_files, data.train_max_samples)
        self.val_data = _dataset(config, tokenizer, data.val_files, data.val_max_samples) if data.val_files else None
        self.order = BatchOrder(len(self.train_data), data.train_batch_size, seed=data.seed, shuffle=data.shuffle)
        self.total_steps = self.order.total_steps(trainer.total_training_steps, trainer.total_epochs)
        settings = RunSettings(executor.device(trainer.device), self.total_steps, trainer.seed, loaded.user_keys)
        torch.manual_seed(trainer.seed)
        arguments = {"config": config, "run": settings}
        role = Role(SFTWorker, arguments, config.ulysses_sequence_parallel_size)
        self.model = executor.start({"model": role})["model"]
        self.directory = Path(trainer.default_local_dir).expanduser()
        self.checkpoints = Checkpoints(self.directory)

    def fit(self) -> None:
        trainer = self.config.trainer
        first, last_line = self._resume()
        tracker = self._tracker(first, last_line)
        with progress_bar() as bar:
            task = bar.add_task("fine-tuning", total=self.total_steps, completed=first)
            if first >= self.total_steps:
                logger.info(finished_already(first, self.total_steps))
            for step in range(first, self.total_steps):
                last = step + 1 == self.total_steps
                metrics = self._train_step(step)
                if self.val_data is not None and due(step + 1, trainer.test_freq, last=last):
                    metrics["val/loss"] = self.validate()
                if saves(step + 1, trainer.save_freq, last=last):
                    self._save(step + 1, metrics)
                tracker.log(metrics, step=step + 1)
                bar.advance(task)
        tracker.close()
        logger.info(self.checkpoints.summary())

    def _train_step(self, step: int) -> dict[str, float]:
        timer = Timer()
        with timer("step"):
            with timer("data"):
                batch = _batch(self.train_data.samples(self.order.batch(step).tolist()))
            batch = batch.with_tokens(loss_weight=loss_weights(batch["loss_mask"], batch.offsets, "token-mean"))
            metrics = self.model.map("update", batch, training_step=step)
        seconds = timer.seconds["step"]
        return {
            "training/global_step": step + 1,
            "training/epoch": step // self.order.steps_per_epoch,
            **{f"train/{name}": value for name, value in metrics.items()},
            **timer.metrics(),
            "perf/total_num_tokens": float(batch.num_tokens),
            "perf/throughput": batch.num_tokens / (seconds * self.config.ranks),
        }

    def validate(self) -> float:
        """Mean negative log-likelihood of the validation set's trained tokens, every row counted."""
        assert self.val_data is not None
        total, count, size = 0.0, 0, self.config.data.train_batch_size
        for start in range(0, len(self.val_data), size):
            batch = _batch(self.val_data.samples(range(start, min(start + size, len(self.val_data)))))
            mask = batch["loss_mask"].bool()
            total -= float(self.model.map("compute_logprobs", batch)["logprobs"][mask].double().sum())
            count += int(mask.sum())
        return total / max(count, 1)

    def _save(self, step: int, metrics: dict[str, float]) -> None:
        contents = self.config.trainer.checkpoint.save_contents

        def write(folder: Path) -> None:
            self.model.call("save", path=folder / "model", contents=contents)

        self.checkpoints.save(step, {"metrics": metrics}, write)
        self.checkpoints.prune({"model": self.config.trainer.max_ckpt_to_keep}, newest=step)

    def _resume(self) -> tuple[int, dict[str, float]]:
        """The number of steps already done, and the metrics of the last of them."""
        trainer = self.config.trainer
        folder = self.checkpoints.find(trainer.resume_mode, trainer.resume_from_path)
        if folder is None:
            return 0, {}
        contents, state = set(trainer.checkpoint.save_contents) - {"hf_model"}, read_state(folder)
        self.model.call("load", path=folder / "model", contents=contents)
        logger.info("resumed from %s after step %d", folder, state["step"])
        return state["step"], state["metrics"]

    def _tracker(self, done: int, last_line: dict[str, float]) -> Tracker:
        trainer = self.config.trainer
        write_config(self.directory, self.loaded.to_yaml(), done)
        return Tracker(
            list(trainer.logger),
            project=trainer.project_name,
            experiment=trainer.experiment_name,
            directory=self.directory,
            config=self.config.model_dump(),
            done=done,
            last_line=last_line,
        )


def saves(step: int, frequency: int, *, last: bool) -> bool:
    """Whether a checkpoint follows a step. What was trained is never lost: one follows the last step in any case."""
    return last or due(step, frequency, last=last)


def _batch(samples: Sequence[SFTSample]) -> Batch:
    return Batch.from_sequences(
        {"input_ids": [s.input_ids for s in samples], "loss_mask": [s.loss_mask for s in samples]}
    )


def _dataset(config: SFTConfig, tokenizer, files, max_samples: int) -> SFTDataset:  # type: ignore[no-untyped-def]
    data = config.data
    return SFTDataset(
        files,
        tokenizer=tokenizer,
        max_length=data.max_length,
        prompt_key=data.prompt_key,
        response_key=data.response_key,
        prompt_dict_keys=data.prompt_dict_keys,
        response_dict_keys=data.response_dict_keys,
        messages_key=data.messages_key if data.multiturn.enable else None,
        truncation=data.truncation,
        max_samples=max_samples,
        shuffle=data.shuffle,
        seed=data.seed,
    )
