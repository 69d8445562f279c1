"""From prompts to finished, scored trajectories: hands out tasks and takes back what comes, scoring as it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

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
        stop=tuple(rollout.stop),
        first_temperature=rollout.fire_temperature if rollout.use_fire_sampling and keys is rollout else None,
    )


@dataclass
class Sampled:
    """The trajectories of some prompts, in the prompts' order, n side by side; rewards may still be on their way."""

    samples: list[Sample]
    trajectories: list[Trajectory]
    pending_rewards: list[Future[Reward]]

    def __len__(self) -> int:
        return len(self.trajectories)

    @classmethod
    def none(cls) -> Sampled:
        return cls([], [], [])

    def __add__(self, other: Sampled) -> Sampled:
        return Sampled(
            self.samples + other.samples,
            self.trajectories + other.trajectories,
            self.pending_rewards + other.pending_rewards,
        )

    def rows(self, indices: Iterable[int]) -> Sampled:
        chosen = list(indices)
        columns = (self.samples, self.trajectories, self.pending_rewards)
        return Sampled(*([column[i] for i in chosen] for column in columns))  # type: ignore[arg-type]

    def rewards(self) -> list[Reward]:
        """Waits for the last score. A mistake in the reward's set-up is raised here."""
        return [future.result() for future in self.pending_rewards]

    def lines(self, tokenizer: PreTrainedTokenizerBase, rewards: Sequence[Reward]) -> list[dict[str, Any]]:
        """One object per trajectory for a dump."""
        prompts = tokenizer.batch_decode([t.prompt_ids for t in self.trajectories])
        rows = zip(prompts, self.samples, self.trajectories, rewards, strict=True)
        return [
            {"input": prompt, "output": trajectory.text, "gts": sample.ground_truth, "score": reward.score}
            | ({"turn_rewards": [float(r) for r in trajectory.turn_rewards]} if len(trajectory.turn_rewards) else {})
            | reward.extras
            for prompt, sample, trajectory, reward in rows
        ]


class Sampler:
    """Runs n agents per prompt on the rollout group and scores each trajectory as soon as it is there."""

    def __init__(self, rollout: WorkerGroup, manager: RewardManager) -> None:
        self.rollout = rollout
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
        rewards: list[Any] = [None] * len(tasks)
        for index, trajectory in self.rollout.stream("rollout", tasks):
            trajectories[index] = trajectory
            rewards[index] = self._submit(samples[index], trajectory.text)
            on_finished()
        return Sampled(samples, trajectories, rewards)

    def _submit(self, sample: Sample, answer: str) -> Future[Reward]:
        return self.manager.submit(sample.data_source, answer, sample.ground_truth, sample.extra_info)
