"""Reinforcement learning, top to bottom: sample, score, log-probs, advantages, update, hand over, validate, save.

PPO, GRPO, RLOO, REINFORCE++ and their kin are this one loop; they differ in the estimator, the loss and whether there
is a critic. What a line here needs beyond itself lives in the neighbouring files.
"""

from __future__ import annotations

from pathlib import Path

import torch

from hone.agents import to_batch
from hone.algorithms import masked_mean
from hone.batch import Batch
from hone.cluster import Executor
from hone.config import Loaded, PPOConfig
from hone.tracking.console import progress_bar
from hone.tracking.run_directory import dump_trajectories
from hone.tracking.timing import Timer
from hone.trainers.advantages import add_advantages, add_importance, estimator_of, kl_controller, mismatch
from hone.trainers.checkpoints import Checkpoints, due, finished_already, read_state
from hone.trainers.collection import Collector
from hone.trainers.filtration import redraw
from hone.trainers.metrics import batch_metrics, reward_metrics, speed_metrics
from hone.trainers.on_policy import OnPolicy
from hone.trainers.ppo_setup import Setup, set_up
from hone.trainers.sampling import Sampled
from hone.trainers.scoring import Scoring
from hone.trainers.updates import run_on_policy_update, run_update
from hone.trainers.validation import Validator, validates_first

FORWARD = ("input_ids", "response_mask", "prompt_length", "group")  # columns that a pass without an update reads


class PPOTrainer:
    def __init__(self, loaded: Loaded, executor: Executor) -> None:
        self.config: PPOConfig = loaded.config
        self.estimator = estimator_of(self.config.algorithm)
        self.setup: Setup = set_up(loaded, executor)
        self.controller = kl_controller(self.config.algorithm.kl_ctrl)
        self.scoring = Scoring(self.config.reward_model.overlong_buffer, self.config.data.max_response_length)
        self.on_policy = OnPolicy.of(self.config, stochastic=self.setup.groups["actor"].call("stochastic")[0])
        self.collector = Collector(self.config, self.setup, self.scoring)
        self.checkpoints = Checkpoints(self.setup.directory)
        self.validator = Validator(self.config, self.setup)

    def fit(self) -> None:
        trainer, setup = self.config.trainer, self.setup
        first, last_line = self._resume()
        with setup.track(first, last_line) as tracker, progress_bar() as bar:
            if validates_first(self.config, first):
                tracker.log(self.validator(first), step=first)
            if trainer.val_only:
                return
            if first >= setup.total_steps:
                setup.say(finished_already(first, setup.total_steps))
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
        setup.say(self.checkpoints.summary())

    def train_step(self, step: int, timer: Timer) -> tuple[Batch, dict[str, float]]:
        setup, groups = self.setup, self.setup.groups
        with timer("gen"):
            sampled, metrics = self.collector()
            batch = to_batch(sampled.trajectories, sampled.samples)
        greedy = None
        if self.config.algorithm.adv_estimator == "remax":
            with timer("gen_max"):
                greedy = self.collector.greedy(sampled)
        if not self.config.reward_model.launch_reward_fn_async:
            with timer("reward"):
                batch, rewarded = self._add_scores(batch, sampled, greedy, step)
        on_policy = self.on_policy.holds(batch, setup.actor_plan, step)
        if not on_policy:
            with timer("old_log_prob"):
                batch = batch.with_tokens(**groups["actor"].map("compute_logprobs", batch.only(FORWARD)).tokens)
        if self.config.needs_ref_logprobs:
            with timer("ref"):
                batch = batch.with_tokens(**groups["ref"].map("compute_logprobs", batch.only(FORWARD)).tokens)
        if "critic" in groups:
            with timer("values"):
                batch = batch.with_tokens(**groups["critic"].map("compute_values", batch.only(FORWARD)).tokens)
        if "score" not in batch:
            with timer("reward"):
                batch, rewarded = self._add_scores(batch, sampled, greedy, step)
        with timer("adv"):
            batch = add_importance(batch, self.config.algorithm)
            batch, penalty = add_advantages(batch, self.config.algorithm, self.estimator, self.controller)
            trained, filtered = self._filtered(batch, step)
            metrics = rewarded | metrics | penalty | filtered
        if "critic" in groups:
            with timer("update_critic"):
                metrics.update(run_update(groups["critic"], trained, setup.critic_plan, step, "critic"))
        if step >= self.config.trainer.critic_warmup:
            with timer("update_actor"):
                if on_policy:
                    batch, updated = run_on_policy_update(groups["actor"], batch, setup.actor_plan, step, "actor")
                else:
                    updated = run_update(groups["actor"], trained, setup.actor_plan, step, "actor")
            with timer("update_weights"):
                groups["rollout"].call("update_weights", version=step + 1)
            metrics.update(updated)
        metrics["actor/entropy"] = _mean(batch["entropy"], batch["response_mask"])
        metrics.update(mismatch(batch, self.config.algorithm))
        return batch, {**metrics, **batch_metrics(batch, self.config.data.max_response_length)}

    def _add_scores(
        self, batch: Batch, sampled: Sampled, greedy: Sampled | None, step: int
    ) -> tuple[Batch, dict[str, float]]:
        """The columns of `Scoring`, and the metrics of the rewards."""
        rewards = sampled.rewards()
        if self.config.trainer.rollout_data_dir:
            lines = sampled.lines(self.setup.tokenizer, rewards)
            dump_trajectories(self.config.trainer.rollout_data_dir, step + 1, lines)
        batch, metrics = self.scoring.add_scores(batch, rewards)
        if greedy is not None:
            batch, baseline = self.scoring.add_greedy_rewards(batch, greedy)
            metrics.update(baseline)
        return batch, {**reward_metrics(rewards), **metrics}

    def _filtered(self, batch: Batch, step: int) -> tuple[Batch, dict[str, float]]:
        """What the update runs over: all trajectories, or with use_pf_ppo a draw from them."""
        algorithm = self.config.algorithm
        if not algorithm.use_pf_ppo:
            return batch, {}
        return redraw(batch, algorithm.pf_ppo, seed=self.config.trainer.seed, step=step)

    def _line(self, step: int, metrics: dict[str, float], timer: Timer, batch: Batch) -> dict[str, float]:
        """Everything that is logged of a step."""
        line = {"training/global_step": step + 1, "training/epoch": self.collector.epoch, **metrics}
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

        position, controller = self.collector.position, self.controller.state_dict()
        self.checkpoints.save(step, {"kl_controller": controller, "position": position, "metrics": line}, write)
        keep = config.trainer
        roles = {"actor": keep.max_actor_ckpt_to_keep, "critic": keep.max_critic_ckpt_to_keep}
        self.checkpoints.prune(roles, newest=step)

    def _resume(self) -> tuple[int, dict[str, float]]:
        """Loads the checkpoint that resume_mode asks for: training steps already done, the metrics of the last one."""
        trainer, groups = self.config.trainer, self.setup.groups
        folder = self.checkpoints.find(trainer.resume_mode, trainer.resume_from_path)
        if folder is None:
            return 0, {}
        actor, state = self.config.actor_rollout_ref.actor, read_state(folder)
        groups["actor"].call("load", path=folder / "actor", contents=actor.checkpoint.load_contents)
        if "critic" in groups:
            groups["critic"].call("load", path=folder / "critic", contents=self.config.critic.checkpoint.load_contents)
        self.controller.load_state_dict(state["kl_controller"])
        self.collector.position = state.get("position", state["step"])  # one batch a step before there was a position
        groups["rollout"].call("update_weights", version=state["step"])
        self.setup.say(f"resumed from {folder} after step {state['step']}")
        return state["step"], state["metrics"]


def _mean(values: torch.Tensor, mask: torch.Tensor) -> float:
    return float(masked_mean(values, mask.bool()))
