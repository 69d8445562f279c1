"""What a step costs the driver alone: engines that answer at once, 8192 trajectories of 1024 tokens on 8 ranks.

    python benchmarks/driver.py [--trajectories 8192] [--tokens 1024] [--ranks 8] [--steps 3]

Dealing to ranks, joining, advantages, loss weights, rewards in their process and metrics are the real ones; the ranks
are simulated in this process, and what they would compute is replaced by columns of zeros. Prints where the seconds
go, the slowest part first. Making the trajectories themselves is the work of the rollout and is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from hone.agents import Trajectory, compact
from hone.batch import Batch
from hone.cluster import Role
from hone.cluster.dealing import Dealing, join, shares
from hone.config import load
from hone.tracking.timing import Timer, TrainingCost
from hone.trainers.ppo import PPOTrainer
from hone.workers.rollout import RolloutTask

SAMPLES, PROMPT_TOKENS = 8, 128
REWARD = "def score(data_source, solution_str, ground_truth, extra_info):\n    return len(solution_str) % 7 / 7\n"


class Actor:
    """Answers at once."""

    def compute_logprobs(self, batch: Batch) -> Batch:
        zeros = torch.zeros(batch.num_tokens)
        return Batch(batch.offsets, {"old_logprobs": zeros, "entropy": zeros})

    def update(self, batch: Batch, training_step: int) -> dict[str, float]:
        return {"grad_norm": 1.0}

    def stochastic(self) -> bool:
        return False

    def cost(self) -> TrainingCost:
        return TrainingCost(parameters=1, trained=1, attention_width=1, peak=1.0)


class Rollout:
    """Gives back trajectories that were made beforehand, as a rank sends them: compact and decoded."""

    def __init__(self, made: Sequence[Trajectory]) -> None:
        self.made = made

    def rollout(self, tasks: Sequence[RolloutTask]) -> Iterator[tuple[int, Trajectory]]:
        return ((task.index, self.made[task.index]) for task in tasks)

    def update_weights(self, version: int) -> None: ...


class SimulatedRanks:
    """A worker group that deals and joins as the one on Ray does."""

    def __init__(self, worker: Any, ranks: int) -> None:
        self.worker, self.size = worker, ranks

    def map(self, method: str, batch: Batch, **arguments: Any) -> Any:
        dealt = Dealing().rows(batch, self.size)
        return join([getattr(self.worker, method)(batch.select(rows), **arguments) for rows in dealt], dealt)

    def call(self, method: str, **arguments: Any) -> list[Any]:
        return [getattr(self.worker, method)(**arguments)] * self.size

    def stream(self, method: str, items: Sequence[Any], **arguments: Any) -> Iterator[Any]:
        for share in shares(items, self.size):
            yield from getattr(self.worker, method)(share, **arguments)


class Simulation:
    """An executor without engines."""

    def __init__(self, ranks: int, made: Sequence[Trajectory]) -> None:
        self.ranks, self.made = ranks, made

    def device(self, wanted: str) -> torch.device:
        return torch.device("cpu")

    def start(self, roles: Mapping[str, Role]) -> Mapping[str, SimulatedRanks]:
        workers = {"actor": Actor(), "rollout": Rollout(self.made)}
        return {name: SimulatedRanks(worker, self.ranks) for name, worker in workers.items()}

    def shutdown(self) -> None: ...


def made_up(count: int, tokens: int, vocabulary: int) -> list[Trajectory]:
    """Trajectories of `tokens` tokens in all."""
    generator = torch.Generator().manual_seed(0)
    length = tokens - PROMPT_TOKENS
    prompts = torch.randint(5, vocabulary, (count // SAMPLES, PROMPT_TOKENS), generator=generator).tolist()
    responses = torch.randint(5, vocabulary, (count, length), generator=generator).tolist()
    ones, logprobs, versions = [1] * length, [-1.5] * length, [0] * length
    rows = (Trajectory(prompts[i // SAMPLES], r, ones, logprobs, versions, "length") for i, r in enumerate(responses))
    return [compact(row, " ".join(map(str, row.response_ids))) for row in rows]


def trainer_of(directory: Path, options: argparse.Namespace) -> PPOTrainer:
    from hone.data.arithmetic import write_arithmetic
    from hone.data.files import read_rows
    from hone.models.load import load_tokenizer
    from hone.models.tiny import make_tiny_model

    prompts = options.trajectories // SAMPLES
    train, _ = write_arithmetic(directory / "data", train_size=prompts, test_size=1)
    model = make_tiny_model(directory / "model", texts=[r["prompt"][0]["content"] for r in read_rows(str(train))])
    (directory / "reward.py").write_text(REWARD)
    overrides = [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={train}",
        "data.val_files=null",
        f"data.train_batch_size={prompts}",
        f"data.max_prompt_length={PROMPT_TOKENS}",
        f"data.max_response_length={options.tokens}",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=True",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts // 4}",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.name=hf",
        f"actor_rollout_ref.rollout.n={SAMPLES}",
        f"custom_reward_function.path={directory / 'reward.py'}",
        "custom_reward_function.name=score",
        "trainer.n_gpus_per_node=1",
        "trainer.logger=[]",
        f"trainer.default_local_dir={directory / 'run'}",
    ]
    made = made_up(options.trajectories, options.tokens, len(load_tokenizer(str(model))))
    return PPOTrainer(load("ppo", overrides), Simulation(options.ranks, made))


def measure(trainer: PPOTrainer, steps: int) -> dict[str, float]:
    """Median seconds of each part of a step."""
    seconds: list[dict[str, float]] = []
    for step in range(steps + 1):
        timer = Timer()
        with timer("step"):
            trainer.train_step(0, timer)
        if step:  # the first one warms up
            seconds.append(dict(timer.seconds))
    parts = {name: statistics.median(s[name] for s in seconds) for name in seconds[0]}
    parts["metrics and the rest"] = parts["step"] - sum(v for name, v in parts.items() if name != "step")
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        parts = measure(trainer_of(Path(name), options), options.steps)
    for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"{part:24} {seconds:7.3f} s")


if __name__ == "__main__":
    main()
