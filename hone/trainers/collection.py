"""Where a step's trajectories come from: prompts in the order of the seed, n draws for each, more when a group is
replaced, and a greedy one where the estimator wants it."""

from __future__ import annotations

from dataclasses import replace

from hone.config.schema.ppo import PPOConfig
from hone.rollout.interface import Sampling
from hone.tracking.console import progress_bar
from hone.trainers.dynamic_sampling import sample_informative
from hone.trainers.ppo_setup import Setup
from hone.trainers.sampling import Sampled, sampling_of
from hone.trainers.scoring import Scoring


class Collector:
    """`position` counts the batches of prompts taken so far. Which prompts come next, and their draws, depend on it and
    on seeds alone; it is all that a checkpoint keeps of the data."""

    def __init__(self, config: PPOConfig, setup: Setup, scoring: Scoring) -> None:
        self.config = config
        self.setup = setup
        self.scoring = scoring
        self.position = 0

    def __call__(self) -> tuple[Sampled, dict[str, float]]:
        """train_batch_size * n trajectories."""
        groups = self.config.algorithm.filter_groups
        if not groups.enable:
            return self._next_batch(), {}
        size, n = self.config.data.train_batch_size, self.config.actor_rollout_ref.rollout.n
        return sample_informative(self._next_batch, groups, self.scoring, prompts=size, n=n)

    def greedy(self, sampled: Sampled) -> Sampled:
        """The most likely answer to each of the prompts, scored like the others and never trained on."""
        prompts = list({sample.uid: sample for sample in sampled.samples}.values())
        sampling = replace(self._sampling(), temperature=0.0, first_temperature=None)
        return self.setup.sampler(prompts, n=1, sampling=sampling, seed=(self.config.trainer.seed, "greedy"))

    @property
    def epoch(self) -> int:
        """Of the batch taken last."""
        return max(self.position - 1, 0) // self.setup.order.steps_per_epoch

    def _next_batch(self) -> Sampled:
        setup, n = self.setup, self.config.actor_rollout_ref.rollout.n
        prompts = [setup.train_data[int(i)] for i in setup.order.batch(self.position)]
        seed = (self.config.trainer.seed, "train", self.position)
        self.position += 1
        with progress_bar() as bar:
            task = bar.add_task("generating", total=len(prompts) * n)
            finished = lambda: bar.advance(task)  # noqa: E731
            return setup.sampler(prompts, n=n, sampling=self._sampling(), seed=seed, on_finished=finished)

    def _sampling(self) -> Sampling:
        rollout = self.config.actor_rollout_ref.rollout
        return sampling_of(rollout, rollout)
