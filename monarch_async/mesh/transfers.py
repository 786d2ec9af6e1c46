"""Many transfers at once.

    async with ma.transfers() as batch:
        for handle, out in zip(handles, outs):
            batch.fetch(handle, out)

Each starts at once, so many at a time as ``limit`` says. The block ends when all have; the first that fails cancels the
others, as in a TaskGroup, and the block raises an ExceptionGroup.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from monarch_async.errors import BadCall
from monarch_async.mesh.buffer import Handle
from monarch_async.wire.strided import Index

T = TypeVar("T")


class Transfers:
    """See the module. Made by `transfers`."""

    def __init__(self, limit: int) -> None:
        """At most ``limit`` at a time."""
        self._group = asyncio.TaskGroup()
        self._turns = asyncio.Semaphore(limit)

    def fetch(
        self, handle: Handle[T], out: T | None = None, slice: Index | None = None, device: str | None = None
    ) -> "asyncio.Task[T]":
        """Begin `Handle.fetch`; the task's result is what that returns."""
        return self._start(functools.partial(handle.fetch, out, slice, device))

    def write(self, handle: Handle[T], source: T, slice: Index | None = None) -> "asyncio.Task[None]":
        """Begin `Handle.write`."""
        return self._start(functools.partial(handle.write, source, slice))

    def _start(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> "asyncio.Task[Any]":
        waiting = self._in_turn(begin)
        try:
            return self._group.create_task(waiting)
        except BaseException:
            waiting.close()
            raise

    async def _in_turn(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async with self._turns:
            return await begin()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await self._group.__aexit__(cls, error, tb)


def transfers(limit: int = 16) -> Transfers:
    """Return an ``async with`` block for many transfers, ``limit`` of them at a time. Raises BadCall for no number."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadCall("transfers", f"limit={limit!r}: expected a positive number")
    return Transfers(limit)
