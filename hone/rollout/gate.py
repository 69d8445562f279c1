"""Completions pass side by side; whoever changes the weights under them waits until none is inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    def __init__(self) -> None:
        self._inside = 0
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Any number at once, but not while someone is alone."""
        await self._wait_until_open()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Those inside finish first, and who comes later waits."""
        await self._wait_until_open()
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()

    async def _wait_until_open(self) -> None:
        while not self._open.is_set():  # several may wake, and the first may close it again
            await self._open.wait()
