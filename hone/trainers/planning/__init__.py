"""What a run will do and take, known before any weights are loaded: the same functions as the run's, over models that
are shapes alone."""

from __future__ import annotations

from typing import Literal

from hone.cluster import Dealing
from hone.config import Loaded
from hone.trainers.planning.machine import Machine
from hone.trainers.planning.plan import Plan


def plan_of(command: Literal["ppo", "sft"], loaded: Loaded, machine: Machine, dealing: Dealing) -> Plan:
    """`dealing` says how batches go to ranks. Raises UserError for what the run would raise it for."""
    if command == "ppo":
        from hone.trainers.planning.ppo import plan_ppo

        return plan_ppo(loaded, machine, dealing)
    from hone.trainers.planning.sft import plan_sft

    return plan_sft(loaded, machine, dealing)
