"""A number in memory that two processes share: which answer of a list is being scored."""

from __future__ import annotations

import mmap
from tempfile import TemporaryFile
from typing import IO

SIZE = 8  # bytes


class Place:
    """Two processes that map the same file see each other's number, also of one that has died."""

    def __init__(self, descriptor: int) -> None:
        self.memory = mmap.mmap(descriptor, SIZE)

    @staticmethod
    def file() -> IO[bytes]:
        """A file without a name, which may be closed when both have mapped it."""
        file = TemporaryFile()  # noqa: SIM115  the caller closes it
        file.truncate(SIZE)
        return file

    def set(self, number: int) -> None:
        self.memory[:] = number.to_bytes(SIZE, "little")

    def get(self) -> int:
        return int.from_bytes(self.memory[:], "little")
