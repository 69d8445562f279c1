"""Processes and where they run."""

from hone.cluster.interface import Executor, Role, WorkerGroup
from hone.cluster.local import LocalExecutor

__all__ = ["Executor", "LocalExecutor", "Role", "WorkerGroup"]
