"""Methods of the user's, plain or async, with a limit on their time: nothing that they do holds up generation."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any


async def call(function: Callable[..., Any], /, *arguments: Any, limit_s: float | None = None) -> Any:
    """The result of a function, or what it raises. A plain one runs in a thread of its own. After `limit_s` seconds a
    TimeoutError is raised: a coroutine is then cancelled, and a thread, which cannot be, left to itself."""
    running = asyncio.ensure_future(_awaited(lambda: function(*arguments), inspect.iscoroutinefunction(function)))
    try:
        # Not wait_for: the loop rests while the driver works, and what has ended meanwhile is in time.
        await asyncio.wait({running}, timeout=limit_s)
        if not running.done():
            raise TimeoutError(f"no answer within {limit_s:g} seconds")
        if running.cancelled():  # by itself: from here it would look as if the trajectory was
            raise RuntimeError("the call was cancelled")
        return running.result()
    finally:
        running.cancel()


async def _awaited(run: Callable[[], Any], asynchronous: bool) -> Any:
    try:
        result = run() if asynchronous else await _in_thread(run)
        return await result if inspect.isawaitable(result) else result  # of an object with an async __call__, too
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as problem:
        raise _settable(problem) from problem


def _in_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Not a pool: threads that are stuck would fill it, and keep Python from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def give(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_result, function())
        except BaseException as problem:
            outcome = (future.set_exception, _settable(problem))
        if not loop.is_closed():
            loop.call_soon_threadsafe(give, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return future


def _settable(problem: BaseException) -> BaseException:
    """A future takes no StopIteration, and an exit, or what else is no Exception, must not end the loop."""
    if isinstance(problem, Exception) and not isinstance(problem, StopIteration):
        return problem
    return RuntimeError(f"{type(problem).__name__}: {problem}")
