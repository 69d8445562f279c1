"""Runs over several Ray ranks: the numbers of one process, and an end to everything when something dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.cluster import ClusterOptions, Dealing, Role
from hone.cluster.rank import RankProcess
from hone.errors import UserError
from tests.shows import shows
from tests.trainers.runs import ACTOR, MODEL, REF, ROLLOUT, Run, Stage, difference

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
PACKED = [f"{MODEL}.use_remove_padding=True", "critic.model.use_remove_padding=True"]
SHARING = "ulysses_sequence_parallel_size"
LORA = [f"{MODEL}.lora_rank=4", "critic.model.lora_rank=4"]
SGD = [f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.1", "critic.optim.optimizer=SGD", "critic.optim.lr=0.1"]


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=300_000_000)
    yield
    ray.shutdown()


def on_ranks(stage: Stage, name: str, argv: list[str], options: ClusterOptions, estimator: str = "grpo") -> Run:
    from hone.cluster.ray import RayExecutor
    from hone.config import load
    from hone.trainers.ppo import PPOTrainer

    executor = RayExecutor(options)
    try:
        ranks = [f"trainer.nnodes={options.nodes}", f"trainer.n_gpus_per_node={options.ranks_per_node}"]
        PPOTrainer(load("ppo", stage.ppo(name, *argv, *ranks, estimator=estimator)), executor).fit()
    finally:
        executor.shutdown()
    return Run(stage.directory / name)


@pytest.mark.parametrize(
    ("ranks", "strategy", "estimator", "more"),
    [
        (2, "fsdp2", "grpo", [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"]),
        (2, "fsdp", "gae", PACKED),
        (4, "fsdp2", "gae", [f"{ACTOR}.fsdp_config.fsdp_size=2", "trainer.balance_batch=False"]),
        (
            2,
            "fsdp2",
            "grpo",
            [f"{MODEL}.use_remove_padding=True", f"{ACTOR}.use_prefix_grouper=True", f"{ROLLOUT}.n=4"],
        ),
        (2, "fsdp2", "grpo", [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"]),
        (2, "fsdp2", "gae", [*LORA, f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=full"]),
        (4, "fsdp", "gae", [*LORA, "algorithm.use_kl_in_reward=True"]),
    ],
)
def test_ranks_train_and_measure_what_one_process_does(
    cluster: None, stage: Stage, ranks: int, strategy: str, estimator: str, more: list[str]
) -> None:
    argv = [*SGD, f"{ACTOR}.strategy={strategy}", *more, "trainer.test_freq=1"]
    alone = stage.run_ppo("alone", *argv, estimator=estimator)
    options = ClusterOptions(ranks_per_node=ranks, dealing=Dealing(keep_groups=True))
    together = on_ranks(stage, "together", argv, options, estimator)
    assert_same_runs(together, alone)


def assert_same_runs(together: Run, alone: Run) -> None:
    assert difference(alone.weights(), together.weights()) < 1e-6
    for ours, theirs in zip(together.results(), alone.results(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name


@shows(f"{ACTOR}.{SHARING}", f"{REF}.{SHARING}", f"critic.{SHARING}")
@pytest.mark.parametrize(
    ("ranks", "estimator", "sizes", "more"),
    [
        (2, "gae", {ACTOR: 2, "critic": 2}, [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.ppo_micro_batch_size_per_gpu=1"]),
        (
            4,
            "gae",
            {ACTOR: 2, REF: 4, "critic": 1},  # each role its own way
            ["algorithm.use_kl_in_reward=True", f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.strategy=fsdp"],
        ),
        (
            4,
            "grpo",
            {ACTOR: 2},
            [
                f"{ACTOR}.use_kl_loss=True",
                f"{ACTOR}.kl_loss_type=full",
                f"{ACTOR}.use_prefix_grouper=True",
                f"{ROLLOUT}.n=4",
            ],
        ),
    ],
)
def test_ranks_that_share_sequences_train_and_measure_what_one_process_does(
    cluster: None, stage: Stage, ranks: int, estimator: str, sizes: dict[str, int], more: list[str]
) -> None:
    argv = [*SGD, *PACKED, *more, "trainer.test_freq=1"]
    alone = stage.run_ppo("alone", *argv, estimator=estimator)
    sharing = [f"{section}.{SHARING}={size}" for section, size in sizes.items()]
    options = ClusterOptions(ranks_per_node=ranks, dealing=Dealing(keep_groups=True))
    together = on_ranks(stage, "together", [*argv, *sharing], options, estimator)
    assert_same_runs(together, alone)


def test_too_few_resources_are_said_before_anything_starts(cluster: None) -> None:
    from hone.cluster.ray import RayExecutor

    with pytest.raises(UserError, match=r"n_gpus_per_node=8 .* 1 node\(s\) with 8 CPUs each; Ray's 1 node\(s\) have 4"):
        RayExecutor(ClusterOptions(ranks_per_node=8)).start({})


class SlowRank(RankProcess):
    """The second of the ranks takes its time to start."""

    def __init__(self, rank: int, seed: int, directory: str) -> None:
        time.sleep(60 * rank)
        super().__init__(rank, seed, directory)


@shows("trainer.ray_wait_register_center_timeout")
def test_the_deadline_names_the_rank_that_is_missing(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from hone.cluster.ray import RayExecutor

    monkeypatch.setattr("hone.cluster.ray.RankProcess", SlowRank)
    executor = RayExecutor(ClusterOptions(ranks_per_node=2, deadline=20))
    begun = time.monotonic()
    try:
        with pytest.raises(UserError, match=r"^rank 1 did not start within 20 seconds.*ray_wait_register_center"):
            executor.start({})
    finally:
        executor.shutdown()
    assert 20 <= time.monotonic() - begun < 50


def test_the_deadline_names_the_resources_that_another_job_holds(cluster: None) -> None:
    from hone.cluster.ray import RayExecutor

    held = ray.util.placement_group([{"CPU": 3}])
    assert held.wait(30)
    executor = RayExecutor(ClusterOptions(ranks_per_node=2, deadline=2))
    try:
        with pytest.raises(UserError, match=r"did not free 1 x \{'CPU': 2\} within 2 seconds.*another job may hold"):
            executor.start({})
    finally:
        executor.shutdown()
        ray.util.remove_placement_group(held)


class Echo:
    """A role that says which rank it is given what."""

    def __init__(self, peers: object) -> None:
        pass

    def each(self, items: list[str]) -> Iterator[tuple[int, str]]:
        import torch.distributed as dist

        yield from ((dist.get_rank(), item) for item in items)


def test_what_is_streamed_goes_to_the_first_of_the_ranks_that_share(cluster: None) -> None:
    from hone.cluster.ray import RayExecutor

    executor = RayExecutor(ClusterOptions(ranks_per_node=4))
    try:
        groups = executor.start({"alone": Role(Echo), "in twos": Role(Echo, ranks_per_share=2)})
        assert sorted(groups["alone"].stream("each", list("abcd"))) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
        assert sorted(groups["in twos"].stream("each", list("abcd"))) == [(0, "a"), (0, "b"), (2, "c"), (2, "d")]
    finally:
        executor.shutdown()


class Mortal:
    """A role that ends its process in one way or another."""

    def __init__(self, peers: object) -> None:
        pass

    def die(self, rank: int) -> None:
        import torch.distributed as dist

        if dist.get_rank() == rank:
            print("the last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def mistake(self) -> None:
        raise UserError("no such thing")


def test_a_rank_that_dies_ends_the_run_with_its_number_and_a_users_mistake_keeps_its_words(cluster: None) -> None:
    from hone.cluster.ray import RayExecutor

    executor = RayExecutor(ClusterOptions(ranks_per_node=2))
    try:
        group = executor.start({"mortal": Role(Mortal)})["mortal"]
        with pytest.raises(UserError, match="^no such thing$"):
            group.call("mistake")
        begun = time.monotonic()
        with pytest.raises(UserError, match=r"rank 1 died"):
            group.call("die", rank=1)
        assert time.monotonic() - begun < 60
    finally:
        executor.shutdown()
