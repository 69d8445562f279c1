"""The peak of the memory that torch operations allocate, counted operation by operation: exact, on any device, and for
tensors without data as well."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """peak: most bytes that tensors made inside held at once; now: those that they hold. What an operation allocates
    within itself is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: Any = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self._count(x.untyped_storage(), before)
        return result

    def _count(self, storage: Any, before: set[int]) -> None:
        if id(storage) in before or storage in self.known:
            return
        size = storage.nbytes()
        self.known[storage] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.now -= size
