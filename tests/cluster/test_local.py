"""Roles in the driver's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hone.batch import Batch
from hone.cluster import LocalExecutor, Role


class Doubler:
    def __init__(self, factor: int, peers: Mapping[str, Any]) -> None:
        self.factor = factor
        self.peers = dict(peers)

    def scale(self, batch: Batch, *, plus: int) -> Batch:
        return batch.with_tokens(x=batch["x"] * self.factor + plus)

    def ask(self, *, what: str) -> str:
        return f"{what}? {self.factor}"

    def count(self, items: list[int], *, start: int = 0) -> Iterator[int]:
        for item in items:
            yield start + item * self.factor


def test_roles_are_built_in_order_and_see_those_before_them() -> None:
    roles = {"first": Role(Doubler, {"factor": 2}), "second": Role(Doubler, {"factor": 3})}
    groups = LocalExecutor().start(roles)
    assert list(groups) == ["first", "second"]
    first, second = (groups[name].call("ask", what=name) for name in groups)
    assert (first, second) == (["first? 2"], ["second? 3"])
    assert groups["first"].worker.peers == {}  # type: ignore[attr-defined]
    assert groups["second"].worker.peers == {"first": groups["first"].worker}  # type: ignore[attr-defined]


def test_a_group_maps_calls_and_streams() -> None:
    group = LocalExecutor().start({"role": Role(Doubler, {"factor": 2})})["role"]
    batch = Batch.from_sequences({"x": [[1, 2], [3]]})
    assert group.map("scale", batch, plus=1)["x"].tolist() == [3, 5, 7]
    stream = group.stream("count", [1, 2], start=10)
    assert next(stream) == 12  # before the rest exists
    assert list(stream) == [14]
    assert group.size == 1 and torch.equal(batch["x"], torch.tensor([1, 2, 3]))
