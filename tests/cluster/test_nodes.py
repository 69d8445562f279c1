"""Which device the ranks of a run get, and whether the machines have room for them."""

from __future__ import annotations

import logging
import socket
import time

import pytest

from hone.cluster import ClusterOptions, LocalExecutor
from hone.cluster.nodes import Node, choose_device, require_reachable, require_room
from hone.errors import UserError

CPUS, GPUS = Node(8, 0), Node(8, 2)


@pytest.fixture
def gpu_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether torch sees a GPU in this process."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    ("gpu_here", "address", "nodes", "chosen"),
    [
        (False, None, [CPUS], "cpu"),
        (True, None, [GPUS], "cuda"),
        (False, None, [GPUS], "cpu"),  # Ray sees a GPU that this torch was not built for
        (False, "10.0.0.1:6379", [CPUS, GPUS], "cuda"),
        (True, "10.0.0.1:6379", [CPUS, CPUS], "cpu"),
    ],
    indirect=["gpu_here"],
)
def test_auto_looks_where_the_ranks_will_be(
    gpu_here: bool, address: str | None, nodes: list[Node], chosen: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = ClusterOptions(ranks_per_node=2, address=address)
    with caplog.at_level(logging.WARNING):
        assert choose_device("auto", nodes, options) == chosen
    assert ("this machine has a GPU, but the cluster" in caplog.text) == (gpu_here and chosen == "cpu")
    assert [choose_device(wish, nodes, options) for wish in ("cpu", "cuda")] == ["cpu", "cuda"]


@pytest.mark.parametrize("gpu_here", [False, True], indirect=True)
def test_one_process_runs_on_the_gpu_that_torch_sees(gpu_here: bool) -> None:
    assert LocalExecutor().device("auto").type == ("cuda" if gpu_here else "cpu")
    assert LocalExecutor().device("cpu").type == "cpu"
    if gpu_here:
        assert LocalExecutor().device("cuda").type == "cuda"
    else:
        with pytest.raises(UserError, match=r"trainer\.device=cuda, but torch sees no GPU here"):
            LocalExecutor().device("cuda")


@pytest.mark.parametrize(
    ("nodes", "options", "device", "said"),
    [
        ([Node(4, 0)], ClusterOptions(ranks_per_node=8), "cpu",
         r"n_gpus_per_node=8 .* 1 node\(s\) with 8 CPUs each; Ray's 1 node\(s\) have 4 CPUs.*ray_init\.num_cpus"),
        ([Node(4, 0)], ClusterOptions(nodes=2), "cpu", r"2 node\(s\) with 1 CPUs.*set ray_init\.address to join"),
        ([Node(4, 0), Node(1, 0)], ClusterOptions(nodes=2, ranks_per_node=2, address="auto"), "cpu",
         r"have 4 CPUs, 1 CPUs\. .*`ray start`"),
        ([Node(8, 1), Node(8, 0)], ClusterOptions(nodes=2, address="auto"), "cuda",
         r"8 CPUs and 1 GPUs, 8 CPUs and 0 GPUs.*trainer\.device=cpu"),
        ([Node(4, 8)], ClusterOptions(ranks_per_node=8), "cuda", r"8 CPUs and 8 GPUs each.*have 4 CPUs and 8 GPUs"),
    ],
)  # fmt: skip
def test_ranks_that_could_never_be_placed_are_refused(
    nodes: list[Node], options: ClusterOptions, device: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        require_room(nodes, options, device)


def test_ranks_that_fit_are_let_through() -> None:
    require_room([Node(2, 0), Node(1, 0), Node(2, 0)], ClusterOptions(nodes=2, ranks_per_node=2), "cpu")
    require_room([Node(2, 2)], ClusterOptions(ranks_per_node=2), "cuda")


def test_a_cluster_that_is_not_there_is_named_at_once() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        require_reachable(address)
    begun = time.monotonic()
    with pytest.raises(UserError, match=rf"Ray could not be reached \(ray_init\.address={address}\).*ray start --head"):
        require_reachable(address)
    assert time.monotonic() - begun < 5
    require_reachable("auto")  # Ray looks for it on this machine
