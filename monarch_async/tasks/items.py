"""The items of a task that is an async generator, where they arrive: within the credit that is given, like a stream's.

I1. It is tried again only as long as no item has come: what the consumer has seen once it does not see again.
I2. It runs at most the credit ahead of its consumer; who leaves the loop cancels it.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from monarch_async.mesh.stream import ItemSource
from monarch_async.tasks.flight import Flight
from monarch_async.wire.frame import STREAMED
from monarch_async.wire.message import CallFields
from monarch_async.wire.payload import Buffer

if TYPE_CHECKING:
    from monarch_async.runtime.path import Path
    from monarch_async.runtime.router import Router
    from monarch_async.tasks.future import TaskFuture

T = TypeVar("T")


class TaskItems(ItemSource[T]):
    """See the module. Made before its task, whose every try it follows."""

    def __init__(self, router: "Router", what: str) -> None:
        """``what`` names the task."""
        super().__init__(router, what, cast("Path", None))
        self.has_come = False  #: an item
        self._future: TaskFuture[Any] | None = None

    def follow(self, future: "TaskFuture[Any]") -> None:
        """Its task was submitted. (Who submitted it, a task itself, lends its cpus until this has ended.)"""
        self._future = future
        future.add_done_callback(self._done)

    @property
    def fields(self) -> CallFields:
        """The control fields of a try."""
        config = self._router.config
        return CallFields("run_stream", credit=(config.stream_items, config.stream_bytes))

    def begin(self, path: "Path", call: int) -> None:
        """A try is sent."""
        self._path, self.id = path, call
        self._owed_items = self._owed_bytes = 0

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._finish(asyncio.CancelledError() if future.cancelled() else future.exception())

    def _cancel(self) -> None:
        if self._future is not None:
            self._future.cancel()

    async def aclose(self) -> None:
        """Cancel the generator and wait until it has ended."""
        self._is_closed = True
        self._items.clear()
        self._cancel()
        if not self._ended.done():
            await asyncio.wait([self._ended])


class StreamFlight(Flight):
    """One try of it."""

    __slots__ = ()

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        """An item, or the end."""
        if not flags & STREAMED:
            return super().take_reply(src, flags, rank, skeleton, buffers)
        if self._pool.has_come(self):
            assert self.task.items is not None
            self.task.items.take_reply(src, flags, rank, skeleton, buffers)
        return False
