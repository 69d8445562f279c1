"""Processes and where they run."""

from hone.cluster.dealing import Dealing
from hone.cluster.interface import Executor, Role, WorkerGroup
from hone.cluster.local import LocalExecutor
from hone.cluster.options import ClusterOptions, executor_for

__all__ = ["ClusterOptions", "Dealing", "Executor", "LocalExecutor", "Role", "WorkerGroup", "executor_for"]
