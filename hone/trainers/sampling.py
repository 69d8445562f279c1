"""From prompts to finished, scored trajectories: hands out tasks and takes back what comes, scoring as it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hone.agents import Trajectory
from hone.cluster import WorkerGroup
from hone.config.schema.rollout import RolloutConfig, SamplingKeys
from hone.data.prompts import Sample
from hone.rewards import Reward, RewardManager
from hone.rollout.interface import Sampling
from hone.workers.rollout import RolloutTask


def trajectory_seed(*parts: int | str) -> int:
    """A seed that is a function of the run's seed and of which trajectory this is, and of nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def sampling_of(rollout: RolloutConfig, keys: SamplingKeys) -> Sampling:
    """How to draw responses: `keys` are the rollout's own for training, or its val_kwargs for validation, where the
    first token is drawn like the others."""
    return Sampling(
        max_tokens=rollout.response_length,
        temperature=keys.temperature if keys.do_sample else 0.0,
        top_k=keys.top_k,
        top_p=keys.top_p,
        min_p=keys.min_p,
        repetition_penalty=rollout.repetition_penalty,
        ignore_eos=rollout.ignore_eos,
        stop_token_ids=tuple(rollout.stop_token_ids),
        first_temperature=rollout.fire_temperature if rollout.use_fire_sampling and keys is rollout else None,
    )


@dataclass
class Sampled:
    """The trajectories of some prompts, in the prompts' order, n side by side; rewards may still be on their way."""

    samples: list[Sample]
    trajectories: list[Trajectory]
    answers: list[str]
    pending_rewards: list[Future[Reward]]

    def __len__(self) -> int:
        return len(self.trajectories)

    @classmethod
    def none(cls) -> Sampled:
        return cls([], [], [], [])

    def __add__(self, other: Sampled) -> Sampled:
        return Sampled(
            self.samples + other.samples,
            self.trajectories + other.trajectories,
            self.answers + other.answers,
            self.pending_rewards + other.pending_rewards,
        )

    def rows(self, indices: Iterable[int]) -> Sampled:
        chosen = list(indices)
        columns = (self.samples, self.trajectories, self.answers, self.pending_rewards)
        return Sampled(*([column[i] for i in chosen] for column in columns))  # type: ignore[arg-type]

    def rewards(self) -> list[Reward]:
        """Waits for the last score. A mistake in the reward's set-up is raised here."""
        return [future.result() for future in self.pending_rewards]

    def lines(self, tokenizer: PreTrainedTokenizerBase, rewards: Sequence[Reward]) -> list[dict[str, Any]]:
        """One object per trajectory for a dump."""
        prompts = tokenizer.batch_decode([t.prompt_ids for t in self.trajectories])
        rows = zip(prompts, self.answers, self.samples, self.trajectories, rewards, strict=True)
        return [
            {"input": prompt, "output": answer, "gts": sample.ground_truth, "score": reward.score}
            | ({"turn_rewards": [float(r) for r in trajectory.turn_rewards]} if len(trajectory.turn_rewards) else {})
            | reward.extras
            for prompt, answer, sample, trajectory, reward in rows
        ]


class Sampler:
    """Runs n agents per prompt on the rollout group and scores each trajectory as soon as it is there."""

    def __init__(self, rollout: WorkerGroup, tokenizer: PreTrainedTokenizerBase, manager: RewardManager) -> None:
        self.rollout = rollout
        self.tokenizer = tokenizer
        self.manager = manager

    def __call__(
        self,
        prompts: Sequence[Sample],
        *,
        n: int,
        sampling: Sampling,
        seed: Sequence[int | str],
        on_finished: Callable[[], None] = lambda: None,
    ) -> Sampled:
        samples = [sample for sample in prompts for _ in range(n)]
        tasks = [
            RolloutTask(i, sample, replace(sampling, seed=trajectory_seed(*seed, sample.uid, i % n)))
            for i, sample in enumerate(samples)
        ]
        trajectories: list[Any] = [None] * len(tasks)
        answers = [""] * len(tasks)
        rewards: list[Any] = [None] * len(tasks)
        for index, trajectory in self.rollout.stream("rollout", tasks):
            trajectories[index] = trajectory
            # An array: of a list, transformers checks the type of every id, which takes longer than to decode it.
            answers[index] = self.tokenizer.decode(np.asarray(trajectory.response_ids), skip_special_tokens=True)
            rewards[index] = self._submit(samples[index], answers[index])
            on_finished()
        return Sampled(samples, trajectories, answers, rewards)

    def _submit(self, sample: Sample, answer: str) -> Future[Reward]:
        return self.manager.submit(sample.data_source, answer, sample.ground_truth, sample.extra_info)
