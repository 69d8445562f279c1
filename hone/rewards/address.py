"""How a process finds the reward function that another one was given: by the place where it has a name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

from hone.errors import UserError
from hone.user_code import OWN_MODULE, run_file


@dataclass(frozen=True)
class Address:
    """A module, or the file of the user's that is one, and the function's name in it."""

    module: str
    file: str | None
    name: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Address:
        module, name = getattr(function, "__module__", None) or "", getattr(function, "__qualname__", "")
        if not module.startswith((OWN_MODULE, "__main__")) and _found(module, name) is function:
            return cls(module, None, name)
        for own in [m for n, m in sys.modules.items() if n.startswith(OWN_MODULE)]:
            # Also what has no name of its own: an object that can be called, what a decorator made.
            for name, value in vars(own).items():
                if value is function:
                    return cls(own.__name__, own.__file__, name)
        raise UserError(f"the reward function {function!r} has no name at the top level of a file: give it one there")

    def load(self) -> Callable[..., Any]:
        if self.file is None:
            return attrgetter(self.name)(import_module(self.module))
        return getattr(run_file(self.file, key="custom_reward_function.path"), self.name)


def _found(module: str, name: str) -> Any:
    try:
        return attrgetter(name)(sys.modules.get(module))
    except AttributeError:
        return None
