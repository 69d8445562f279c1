"""A cluster of two machines, which Ray plays on one: joined by its address, refused when it has no room."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hone.cluster import ClusterOptions, Dealing, Role
from hone.errors import UserError
from tests.shows import shows
from tests.trainers.runs import ACTOR, Run, Stage, difference

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = pytest.mark.slow
SGD = [f"{ACTOR}.optim.optimizer=SGD", f"{ACTOR}.optim.lr=0.1", "trainer.test_freq=1"]
MEMORY = 200_000_000


@pytest.fixture
def stage(tmp_path: Path, tiny_model_dir: Path, arithmetic_dir: Path) -> Stage:
    return Stage(tmp_path, tiny_model_dir, arithmetic_dir)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with one CPU each. Their address is written nowhere, or every ray.init() of this machine would join."""
    head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    written = [
        mock.patch(f"ray.{name}") for name in ("_private.utils.write_ray_address", "_common.utils.reset_ray_address")
    ]
    with written[0], written[1]:
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        yield cluster
        cluster.shutdown()


def hone(stage: Stage, *argv: str) -> subprocess.CompletedProcess[str]:
    """The command as a user calls it, in a folder of his own."""
    path = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "hone", *argv]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=stage.directory, env=environment, text=True, capture_output=True, timeout=300)


@shows("trainer.nnodes", "ray_init.address", "ray_init.timeline_json_file")
def test_two_nodes_train_and_measure_what_one_process_does(cluster: Cluster, stage: Stage) -> None:
    alone = stage.run_ppo("alone", *SGD)
    nodes = ["trainer.nnodes=2", "trainer.n_gpus_per_node=1", f"ray_init.address={cluster.address}"]
    relative = ["trainer.default_local_dir=together", "ray_init.timeline_json_file=records/timeline.json"]
    ended = hone(stage, "ppo", *stage.ppo("unused", *SGD, *nodes, *relative))
    assert ended.returncode == 0, ended.stderr
    together = Run(stage.directory / "together")
    assert difference(alone.weights(), together.weights()) < 1e-6
    for ours, theirs in zip(together.results(), alone.results(), strict=True):
        assert ours.keys() == theirs.keys()
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name
    events = json.loads((stage.directory / "records" / "timeline.json").read_text())
    assert {"task::RankProcess.build", "task::RankProcess.run"} <= {event["cat"] for event in events}


class Placed:
    """A role that knows where it is."""

    def __init__(self, peers: object) -> None:
        pass

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()


def started(cluster: Cluster, options: ClusterOptions, wanted: str) -> Any:
    from hone.cluster.ray import RayExecutor

    executor = RayExecutor(options)
    try:
        device = executor.device(wanted)
        return device.type, executor.start({"placed": Role(Placed)})["placed"].call("node")
    finally:
        executor.shutdown()


def joining(cluster: Cluster, **more: Any) -> ClusterOptions:
    return ClusterOptions(address=cluster.address, dealing=Dealing(), **more)


def test_every_node_has_its_ranks(cluster: Cluster) -> None:
    device, nodes = started(cluster, joining(cluster, nodes=2), "auto")
    assert device == "cpu" and len(set(nodes)) == 2


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (["trainer.nnodes=3", "trainer.n_gpus_per_node=1"], r"need 3 node\(s\) with 1 CPUs each; Ray's 2 node\(s\)"),
        (["trainer.nnodes=1", "trainer.n_gpus_per_node=2"], r"need 1 node\(s\) with 2 CPUs each; .* have 1 CPUs, 1"),
    ],
)
def test_a_cluster_without_room_is_refused_before_a_process_starts(
    cluster: Cluster, stage: Stage, sizes: list[str], said: str
) -> None:
    ended = hone(stage, "ppo", *stage.ppo("run", *sizes, f"ray_init.address={cluster.address}"))
    assert ended.returncode == 2
    assert re.search(said, ended.stderr), ended.stderr
    assert not (stage.directory / "run").exists()


@shows("trainer.device")
def test_auto_takes_the_gpus_of_the_cluster_and_a_rank_without_one_says_so(cluster: Cluster) -> None:
    """The command's machine has no GPU; the cluster's are made up, so that torch finds none in the ranks."""
    node = cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=MEMORY)
    try:
        with pytest.raises(UserError, match=r"rank \d on .* was given a GPU by Ray, but torch sees none there"):
            started(cluster, joining(cluster, ranks_per_node=2), "auto")
        with pytest.raises(UserError, match=r"have .*2 CPUs and 2 GPUs.*set trainer\.device=cpu"):
            started(cluster, joining(cluster, nodes=2), "auto")
        assert started(cluster, joining(cluster, nodes=2), "cpu")[0] == "cpu"
    finally:
        cluster.remove_node(node)


@shows("trainer.device")
def test_auto_leaves_out_a_gpu_that_only_the_command_has(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with caplog.at_level(logging.WARNING):
        device, nodes = started(cluster, joining(cluster, nodes=2), "auto")
    assert device == "cpu" and len(nodes) == 2
    assert "this machine has a GPU, but the cluster" in caplog.text
