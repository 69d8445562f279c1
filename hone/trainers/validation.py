"""Greedy (or sampled) answers to the validation prompts, scored; no prompt is ever dropped."""

from __future__ import annotations

from hone.config.schema.ppo import PPOConfig
from hone.data.order import epoch_order
from hone.rewards import Reward, refuse_if_all_raised
from hone.tracking.console import console
from hone.tracking.run_directory import dump_trajectories
from hone.trainers.checkpoints import due
from hone.trainers.ppo_setup import Setup
from hone.trainers.sampling import Sampled, sampling_of
from hone.trainers.validation_metrics import validation_metrics


def validates(config: PPOConfig, step: int, *, last: bool) -> bool:
    """Whether a validation follows a step."""
    return bool(config.data.val_files) and due(step, config.trainer.test_freq, last=last)


def validates_first(config: PPOConfig, done: int) -> bool:
    """Whether a run that has `done` steps behind it begins with a validation."""
    return config.trainer.val_only or (config.trainer.val_before_train and done == 0)


class Validator:
    def __init__(self, config: PPOConfig, setup: Setup) -> None:
        self.config = config
        self.setup = setup
        rows = len(setup.val_data) if setup.val_data is not None else 0
        self.order = epoch_order(rows, seed=config.data.seed, epoch=0, shuffle=config.data.validation_shuffle)

    def due(self, step: int, last: bool) -> bool:
        return validates(self.config, step, last=last)

    def __call__(self, step: int) -> dict[str, float]:
        data = self.setup.val_data
        if data is None:
            return {}
        size = self.config.data.val_batch_size or len(data)
        sources: list[str] = []
        uids: list[str] = []
        rewards: list[Reward] = []
        lines: list[dict] = []
        for start in range(0, len(data), size):
            sampled, scored = self._answer(start, min(start + size, len(data)))
            sources += [s.data_source for s in sampled.samples]
            uids += [s.uid for s in sampled.samples]
            rewards += scored
            lines += sampled.lines(self.setup.tokenizer, scored)
        refuse_if_all_raised(rewards)
        self._show(lines, step)
        return validation_metrics(sources, uids, rewards)

    def _answer(self, start: int, stop: int) -> tuple[Sampled, list[Reward]]:
        rollout = self.config.actor_rollout_ref.rollout
        sampling = sampling_of(rollout, rollout.val_kwargs)
        data = self.setup.val_data
        assert data is not None
        prompts = [data[int(i)] for i in self.order[start:stop]]
        # The same draws at every validation, so that two of them differ by the weights alone.
        sampled = self.setup.sampler(
            prompts, n=rollout.val_kwargs.n, sampling=sampling, seed=(self.config.trainer.seed, "val")
        )
        return sampled, sampled.rewards()

    def _show(self, lines: list[dict], step: int) -> None:
        trainer = self.config.trainer
        if trainer.validation_data_dir:
            dump_trajectories(trainer.validation_data_dir, step, lines)
        for line in lines[: trainer.log_val_generations]:
            console.print(f"validation, score {line['score']}: {line['input']!r} -> {line['output']!r}", markup=False)
