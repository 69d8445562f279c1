"""Reinforcement learning, top to bottom: sample, score, log-probs, advantages, update, hand over, validate, save.

PPO, GRPO, RLOO, REINFORCE++ and their kin are this one loop; they differ in the estimator, the loss and whether there
is a critic. What a line here needs beyond itself lives in the neighbouring files.
"""

from __future__ import annotations

from pathlib import Path

import torch

from hone.agents import to_batch
from hone.batch import Batch
from hone.cluster import Executor
from hone.config import Loaded
from hone.tracking.console import progress_bar
from hone.tracking.run_directory import dump_trajectories
from hone.tracking.timing import Timer
from hone.trainers.advantages import add_advantages, add_importance, kl_controller
from hone.trainers.checkpoints import Checkpoints, due, read_state
from hone.trainers.metrics import batch_metrics, reward_metrics, speed_metrics
from hone.trainers.ppo_setup import Setup, set_up
from hone.trainers.sampling import Sampled, sampling_of
from hone.trainers.updates import run_update
from hone.trainers.validation import Validator


class PPOTrainer:
    def __init__(self, loaded: Loaded, executor: Executor) -> None:
        self.config = loaded.config
        self.setup: Setup = set_up(loaded, executor)
        self.controller = kl_controller(self.config.algorithm.kl_ctrl)
        self.checkpoints = Checkpoints(self.setup.directory)
        self.validator = Validator(self.config, self.setup)

    def fit(self) -> None:
        trainer, setup = self.config.trainer, self.setup
        first, last_line = self._resume()
        with setup.track(first, last_line) as tracker, progress_bar() as bar:
            if trainer.val_only or (trainer.val_before_train and first == 0):
                tracker.log(self.validator(first), step=first)
            if trainer.val_only:
                return
            task = bar.add_task("training", total=setup.total_steps, completed=first)
            for step in range(first, setup.total_steps):
                timer = Timer()
                with timer("step"):
                    batch, metrics = self.train_step(step, timer)
                last = step + 1 == setup.total_steps
                if self.validator.due(step + 1, last):
                    with timer("testing"):
                        metrics.update(self.validator(step + 1))
                if due(step + 1, trainer.save_freq, last=last):
                    with timer("save_checkpoint"):
                        self._save(step + 1, self._line(step, metrics, timer, batch))
                tracker.log(self._line(step, metrics, timer, batch), step=step + 1)
                bar.advance(task)

    def train_step(self, step: int, timer: Timer) -> tuple[Batch, dict[str, float]]:
        setup, groups = self.setup, self.setup.groups
        with timer("gen"):
            sampled = self._sample(step)
            batch = to_batch(sampled.trajectories, sampled.samples)
        if not self.config.reward_model.launch_reward_fn_async:
            with timer("reward"):
                batch, metrics = self._add_scores(batch, sampled, step)
        with timer("old_log_prob"):
            batch = batch.with_tokens(**groups["actor"].map("compute_logprobs", batch).tokens)
        if "ref" in groups:
            with timer("ref"):
                batch = batch.with_tokens(**groups["ref"].map("compute_logprobs", batch).tokens)
        if "critic" in groups:
            with timer("values"):
                batch = batch.with_tokens(**groups["critic"].map("compute_values", batch).tokens)
        if "score" not in batch:
            with timer("reward"):
                batch, metrics = self._add_scores(batch, sampled, step)
        with timer("adv"):
            batch, mismatch = add_importance(batch, self.config.algorithm)
            batch, penalty = add_advantages(batch, self.config.algorithm, self.controller)
            metrics.update(mismatch | penalty)
        if "critic" in groups:
            with timer("update_critic"):
                metrics.update(run_update(groups["critic"], batch, setup.critic_plan, step, "critic"))
        if step >= self.config.trainer.critic_warmup:
            with timer("update_actor"):
                metrics.update(run_update(groups["actor"], batch, setup.actor_plan, step, "actor"))
            with timer("update_weights"):
                groups["rollout"].call("update_weights", version=step + 1)
        metrics["actor/entropy"] = _mean(batch["entropy"], batch["response_mask"])
        return batch, {**metrics, **batch_metrics(batch, self.config.data.max_response_length)}

    def _sample(self, step: int) -> Sampled:
        """n trajectories for each prompt of the step; which prompts and which draws depend on seeds and step alone."""
        rollout, setup = self.config.actor_rollout_ref.rollout, self.setup
        prompts = [setup.train_data[int(i)] for i in setup.order.batch(step)]
        sampling = sampling_of(rollout, rollout)
        with progress_bar() as bar:
            task = bar.add_task("generating", total=len(prompts) * rollout.n)
            seed = (self.config.trainer.seed, "train", step)
            finished = lambda: bar.advance(task)  # noqa: E731
            return setup.sampler(prompts, n=rollout.n, sampling=sampling, seed=seed, on_finished=finished)

    def _add_scores(self, batch: Batch, sampled: Sampled, step: int) -> tuple[Batch, dict[str, float]]:
        """Row columns score and scored (False where the reward function said None), and the metrics of the rewards."""
        rewards = sampled.rewards()
        if self.config.trainer.rollout_data_dir:
            lines = sampled.lines(self.setup.tokenizer, rewards)
            dump_trajectories(self.config.trainer.rollout_data_dir, step + 1, lines)
        batch = batch.with_rows(
            score=torch.tensor([0.0 if r.score is None else r.score for r in rewards]),
            scored=torch.tensor([r.score is not None for r in rewards]),
        )
        return batch, reward_metrics(rewards)

    def _line(self, step: int, metrics: dict[str, float], timer: Timer, batch: Batch) -> dict[str, float]:
        """Everything that is logged of a step."""
        line = {"training/global_step": step + 1, "training/epoch": step // self.setup.order.steps_per_epoch, **metrics}
        line |= timer.metrics() | speed_metrics(timer.seconds, batch, self.config.ranks)
        if "update_actor" in timer.seconds:
            passes, seconds = self.setup.actor_plan.epochs, timer.seconds["update_actor"]
            line["perf/mfu/actor"] = self.setup.actor_cost.utilisation(batch.lengths, passes, seconds)
        return line

    def _save(self, step: int, line: dict[str, float]) -> None:
        groups, config = self.setup.groups, self.config

        def write(folder: Path) -> None:
            contents = config.actor_rollout_ref.actor.checkpoint.save_contents
            groups["actor"].call("save", path=folder / "actor", contents=contents)
            if "critic" in groups:
                groups["critic"].call("save", path=folder / "critic", contents=config.critic.checkpoint.save_contents)

        self.checkpoints.save(step, {"kl_controller": self.controller.state_dict(), "metrics": line}, write)
        keep = config.trainer
        roles = {"actor": keep.max_actor_ckpt_to_keep, "critic": keep.max_critic_ckpt_to_keep}
        self.checkpoints.prune(roles, newest=step)

    def _resume(self) -> tuple[int, dict[str, float]]:
        """Loads the checkpoint that resume_mode asks for: training steps already done, the metrics of the last one."""
        trainer, groups = self.config.trainer, self.setup.groups
        folder = self.checkpoints.find(trainer.resume_mode, trainer.resume_from_path)
        if folder is None:
            return 0, {}
        actor = self.config.actor_rollout_ref.actor
        groups["actor"].call("load", path=folder / "actor", contents=actor.checkpoint.load_contents)
        if "critic" in groups:
            groups["critic"].call("load", path=folder / "critic", contents=self.config.critic.checkpoint.load_contents)
        state = read_state(folder)
        self.controller.load_state_dict(state["kl_controller"])
        groups["rollout"].call("update_weights", version=state["step"])
        self.setup.say(f"resumed from {folder} after step {state['step']}")
        return state["step"], state["metrics"]


def _mean(values: torch.Tensor, mask: torch.Tensor) -> float:
    chosen = values[mask.bool()]
    return float(chosen.mean()) if len(chosen) else 0.0
