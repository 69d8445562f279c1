"""Ranks as Ray actors: several processes on one machine or many, each holding all roles of the run."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hone.batch import Batch
from hone.cluster.dealing import join, shares
from hone.cluster.interface import Role, WorkerGroup
from hone.cluster.nodes import Node, choose_device, require_reachable, require_room
from hone.cluster.options import ClusterOptions
from hone.cluster.rank import RankProcess
from hone.errors import UserError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
import ray  # noqa: E402
from ray.exceptions import RayActorError, RayTaskError  # noqa: E402
from ray.util.placement_group import placement_group, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

logger = logging.getLogger(__name__)
LOG_LINES = 20
REPORT_SECONDS = 2  # processes report what they ran every second


class RayExecutor:
    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.actors: list[Any] = []
        self.group: Any = None
        self.kind = "cpu"
        self.started_ray = False

    def device(self, wanted: str) -> torch.device:
        """Raises UserError when the cluster cannot be reached or has no room for the ranks."""
        self._connect()
        self.kind = choose_device(wanted, _nodes(), self.options)
        require_room(_nodes(), self.options, self.kind)
        return torch.device(self.kind)

    def start(self, roles: Mapping[str, Role]) -> Mapping[str, WorkerGroup]:
        """Raises UserError when the cluster lacks the resources, a rank does not come up in time, or one fails."""
        self._connect()
        require_room(_nodes(), self.options, self.kind)
        self._place()
        options = self.options
        self._wait([actor.place.remote() for actor in self.actors], "start", options.deadline)
        host, port = ray.get(self.actors[0].address.remote())
        if options.nodes == 1:
            host = "127.0.0.1"
        threads = max(int(ray.cluster_resources().get("CPU", 1)) // options.ranks, 1)
        where = (host, port, self.kind, threads, options.ranks_per_node)
        meet = [actor.meet.remote(options.ranks, *where) for actor in self.actors]
        self._wait(meet, "meet the others", options.deadline)
        self._wait([actor.build.remote(dict(roles)) for actor in self.actors], "build its models")
        return {name: RayGroup(self, name, role.ranks_per_share) for name, role in roles.items()}

    def _connect(self) -> None:
        options = self.options
        if ray.is_initialized():
            return
        try:
            if options.address:
                require_reachable(options.address)
                ray.init(address=options.address, log_to_driver=True, logging_level=logging.ERROR)
            else:
                # Without the address, Ray would join whatever cluster runs on this machine.
                ray.init(
                    address="local", num_cpus=options.num_cpus, include_dashboard=False, logging_level=logging.ERROR
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"Ray could not be reached (ray_init.address={options.address}): {error}") from error
        self.started_ray = True

    def _place(self) -> None:
        """One bundle a node, so that a node's ranks are neighbours."""
        options, gpus = self.options, int(self.kind == "cuda")
        bundle = {"CPU": options.ranks_per_node} | ({"GPU": options.ranks_per_node} if gpus else {})
        strategy = "STRICT_SPREAD" if options.nodes > 1 else "PACK"
        self.group = placement_group([bundle] * options.nodes, strategy=strategy)
        if not self.group.wait(options.deadline):
            raise UserError(
                f"Ray did not free {options.nodes} x {bundle} within {options.deadline:g} seconds "
                "(trainer.ray_wait_register_center_timeout); another job may hold them"
            )
        actor = ray.remote(RankProcess)
        for rank in range(options.ranks):
            where = PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=rank // options.ranks_per_node
            )
            placed = actor.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=where)
            self.actors.append(placed.remote(rank, options.seed, os.getcwd()))

    def _wait(self, references: Sequence[Any], doing: str, deadline: float | None = None) -> list[Any]:
        """One result per rank. The first rank that fails ends the wait for all."""
        pending, until = list(references), None if deadline is None else time.monotonic() + deadline
        while pending:
            rest = None if until is None else max(until - time.monotonic(), 0)
            done, pending = ray.wait(pending, num_returns=1, timeout=rest)
            if not done:
                missing = ", ".join(str(references.index(ref)) for ref in pending)
                raise UserError(
                    f"rank {missing} did not {doing} within {deadline:g} seconds; look at Ray's logs, or raise "
                    "trainer.ray_wait_register_center_timeout"
                )
            self.result(done[0], references.index(done[0]))
        return ray.get(list(references))

    def result(self, reference: Any, rank: int) -> Any:
        """A rank's result. Raises what the rank raised, or a UserError that shows the end of a dead rank's log."""
        try:
            return ray.get(reference)
        except RayTaskError as error:
            raise error.cause from error
        except RayActorError as error:
            raise UserError(f"rank {rank} died: {_first_line(error)}{_log_end(error)}") from error

    def shutdown(self) -> None:
        """Ends every process of the run; called again, it does nothing."""
        if not ray.is_initialized():
            return
        try:
            if self.options.timeline:
                _write_timeline(Path(self.options.timeline).expanduser())
        finally:
            self._end()

    def _end(self) -> None:
        for actor in self.actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        if self.group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(self.group)
        self.actors, self.group = [], None
        if self.started_ray:
            ray.shutdown()


class RayGroup:
    """One role in all ranks."""

    def __init__(self, executor: RayExecutor, role: str, ranks_per_share: int = 1) -> None:
        self.executor = executor
        self.role = role
        self.size = executor.options.ranks
        self.ranks_per_share = ranks_per_share

    def map(self, method: str, batch: Batch, **arguments: Any) -> Any:
        dealt = self.executor.options.dealing.rows(batch, self.size // self.ranks_per_share)
        pieces: list[Any] = [batch.select(rows) for rows in dealt]
        if self.ranks_per_share > 1:
            pieces = [ray.put(piece) for piece in pieces]  # sent once, read by several
        references = [
            actor.run.remote(self.role, method, pieces[rank // self.ranks_per_share], **arguments)
            for rank, actor in enumerate(self.executor.actors)
        ]
        return join(self.executor._wait(references, method)[:: self.ranks_per_share], dealt)

    def call(self, method: str, **arguments: Any) -> list[Any]:
        actors = self.executor.actors
        return self.executor._wait([actor.run.remote(self.role, method, **arguments) for actor in actors], method)

    def stream(self, method: str, items: Sequence[Any], **arguments: Any) -> Iterator[Any]:
        first = range(0, self.size, self.ranks_per_share)
        streams: dict[Any, int] = {
            self.executor.actors[rank]
            .stream.options(num_returns="streaming")
            .remote(self.role, method, share, arguments): rank
            for rank, share in zip(first, shares(items, len(first)), strict=True)
        }
        while streams:
            ready: Any = ray.wait(list(streams), num_returns=1)[0][0]
            try:
                reference = next(ready)
            except StopIteration:
                del streams[ready]
                continue
            yield from self.executor.result(reference, streams[ready])


def _nodes() -> list[Node]:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(resources.get("CPU", 0), resources.get("GPU", 0)) for resources in alive]


def _write_timeline(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    time.sleep(REPORT_SECONDS)
    ray.timeline(str(file))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "exit" in line.lower()), lines[0] if lines else type(error).__name__)


def _log_end(error: Exception) -> str:
    """The last lines that the dead process wrote, where its log is on this machine."""
    pid = re.search(r"pid: (\d+)", str(error))
    for file in glob.glob(f"/tmp/ray/session_latest/logs/worker-*-{pid[1]}.err") if pid else []:
        with open(file, errors="replace") as log:
            lines = [line.rstrip() for line in log if not line.startswith(":")][-LOG_LINES:]
        if lines:
            return f"\nthe end of its log ({file}):\n  " + "\n  ".join(lines)
    return "; its log is in Ray's session folder on its machine. Killed processes often mean too little memory"
