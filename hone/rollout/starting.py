"""What engines that are packages of their own share when they start: the environment of their processes, and what they
say when they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """For processes that are started inside; afterwards it is what it was."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def said(error: Any) -> str:
    """In one line."""
    return " ".join(str(error).split()) or type(error).__name__
