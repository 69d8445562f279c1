"""Which modules read a key, as `hone config explain` says it, beside what runs really read."""

from __future__ import annotations

import sys

import pytest

from hone.config.readers import _all_reads
from hone.config.schema.base import Node
from tests.trainers.runs import Stage


def test_everything_that_runs_read_is_known(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[type[Node], str, str]] = set()
    plain = Node.__getattribute__

    def watched(self: Node, name: str) -> object:
        reader = sys._getframe(1).f_globals.get("__name__", "")
        if name in type(self).model_fields and reader.startswith("hone.") and not reader.startswith("hone.config"):
            seen.add((type(self), name, reader))
        return plain(self, name)

    monkeypatch.setattr(Node, "__getattribute__", watched)
    stage.run_ppo("ppo", "actor_rollout_ref.actor.use_kl_loss=True", "trainer.test_freq=2", estimator="gae")
    stage.run_sft("sft")
    known = _all_reads()
    missed = {
        (section.__name__, name, reader)
        for section, name, reader in seen
        if not any(reader in known.get((kin, name), ()) for kin in section.__mro__)
    }
    assert len(seen) > 150 and missed == set()
