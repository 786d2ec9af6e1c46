"""Streams, seen from the consumer: async iterators over what comes back.

Leaving the loop early ends the stream: an iterator that is dropped, closed or cancelled cancels what runs remotely. An
error arrives at its turn, after the items sent before it; a stream never just ends where there was a failure.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from monarch_async.errors import Closed
from monarch_async.ranks import Extent, Point
from monarch_async.runtime.call import MeshCall, load_outcome
from monarch_async.runtime.incoming import CREDITS
from monarch_async.runtime.path import Path
from monarch_async.runtime.router import Router
from monarch_async.wire.frame import CANCEL, CANCELLED, CREDIT, STREAMED, pack_frame
from monarch_async.wire.payload import Buffer

T = TypeVar("T")
R = TypeVar("R")


class End:
    """The end of a stream: its error, or None where it is a clean one."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Stream(Generic[T]):
    """An async iterator over what comes back; also an async context manager. Dropping it ends what runs remotely.

    One task may wait for the next item at a time.
    """

    __slots__ = ("_source",)

    def __init__(self, source: "Source[T]") -> None:
        """Read from ``source``, which the router keeps alive; this object is the user's and decides when it ends."""
        self._source = source

    def __aiter__(self) -> "Stream[T]":
        return self

    def __anext__(self) -> Coroutine[Any, Any, T]:
        """Wait for the next item. Raises what the endpoint raised, after the items that came before it."""
        return self._source.next()

    async def aclose(self) -> None:
        """End the stream early and wait for the acknowledgement; twice is fine."""
        await self._source.aclose()

    async def __aenter__(self) -> "Stream[T]":
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._source.abandon()


class Source(Generic[T]):
    """Where a stream's items arrive."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._items: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    async def next(self) -> T:
        """Wait for the next item."""
        while not self._items:
            if self._is_closed:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("two tasks wait for the next item of one stream: give each its own")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if isinstance(item, End):
            self._is_closed = True
            self._items.clear()  # it has one end
            if item.error is not None:
                raise item.error
            raise StopAsyncIteration
        return self._taken(item)

    def _taken(self, item: Any) -> T:
        """An item leaves the queue: give credit."""
        return item

    def _put(self, item: Any) -> None:
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def aclose(self) -> None:
        """End the stream: cancel what runs remotely and wait for the acknowledgement."""
        self._is_closed = True
        self._items.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abandon(self) -> None:
        """Nobody will ask again: cancel what runs, without waiting. May be called by the collector, on any thread."""
        raise NotImplementedError


class ItemSource(Source[T]):
    """The items of one member's async generator, bounded by the credit it gives: the generator waits for us."""

    is_carrier = True

    def __init__(self, router: Router, what: str, path: Path) -> None:
        """The call has not been sent yet."""
        super().__init__()
        self.id = 0
        self.nbytes = 0
        self._router, self._what, self._path = router, what, path
        self._owed_items = self._owed_bytes = 0
        self._ended: asyncio.Future[None] = router.loop.create_future()
        self.on_put: Callable[[], None] | None = None

    def _put(self, item: Any) -> None:
        super()._put(item)
        if self.on_put is not None:
            self.on_put()

    def _taken(self, item: tuple[int, T]) -> T:
        size, value = item
        self._owed_items += 1
        self._owed_bytes += size
        config = self._router.config
        if self._owed_items * 2 >= config.stream_items or self._owed_bytes * 2 >= config.stream_bytes:
            if not self._ended.done():
                credit = CREDITS.pack(self._owed_items, self._owed_bytes)
                path = self._path
                path.connection.send(
                    pack_frame(CREDIT, STREAMED, path.dst, self._router.address, path.actor, self.id, b"", credit)
                )
            self._owed_items = self._owed_bytes = 0
        return value

    # -- Pending ---------------------------------------------------------------------------------------------------

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        if not flags & STREAMED:
            return self._end(flags, skeleton, buffers)
        if not self._is_closed:
            value, error = load_outcome(flags, skeleton, buffers, self._what)
            if error is not None:
                self._put(End(error))
                self._cancel()
            else:
                self._put((len(skeleton) + sum(map(len, buffers)), value))
        return False

    def _end(self, flags: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        self._path.answered(self.nbytes)
        if flags & CANCELLED:
            error: BaseException | None = None if self._is_closed else Closed(self._what, "the endpoint was cancelled")
        else:
            error = load_outcome(flags, skeleton, buffers, self._what)[1]
        self._finish(error)
        return True

    def _finish(self, error: BaseException | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if not self._is_closed:
            self._put(End(error))

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        return gone(self._path.dst)

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        self._path.answered(self.nbytes)
        self._finish(error)
        return True

    # -- closing ---------------------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        path = self._path
        if self._ended.done() or self._router.is_closed:
            return
        if path.withdraw(self.id):  # never sent: nothing runs that would acknowledge
            self._router.pending.pop(self.id, None)
            self.lose(lambda _: True, Closed(self._what))
        else:
            path.connection.send(pack_frame(CANCEL, 0, path.dst, self._router.address, path.actor, self.id))

    async def aclose(self) -> None:
        """Cancel the generator and wait, at most ``cancel_grace``, until it has acknowledged."""
        if not self._is_closed:
            await super().aclose()
            self._cancel()
        if not self._ended.done():
            await asyncio.wait([self._ended], timeout=self._router.config.cancel_grace)

    def abandon(self) -> None:
        """See `Source.abandon`."""
        if not self._is_closed and not self._ended.done():
            self._is_closed = True
            self._router.call_soon(self._cancel)


class ResultSource(Source[tuple[Point, R]]):
    """Results of one mesh call as they finish."""

    def __init__(self, extent: Extent) -> None:
        """Of a mesh of ``extent``."""
        super().__init__()
        self._extent = extent
        self._left = extent.size
        self._call: MeshCall[Any] | None = None

    def follow(self, call: "MeshCall[Any]") -> None:
        """The call that was sent."""
        self._call = call

    def push(self, index: int, value: Any, error: Exception | None) -> None:
        """One member has answered."""
        self._left -= 1
        if self._is_closed:
            return
        self._put(End(error) if error is not None else (self._extent.point(index), value))
        if self._left == 0:
            self._put(End(None))

    async def next(self) -> tuple[Point, R]:
        """Wait for the next (point, result). An error ends the stream; the members still running are cancelled."""
        try:
            return await super().next()
        except BaseException:
            self._drop_call()
            raise

    def _drop_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            if call.done():
                call.cancelled() or call.exception()
            else:
                call.on_each = None
                call.cancel()

    async def aclose(self) -> None:
        """Cancel what has not finished."""
        await super().aclose()
        self._drop_call()

    def abandon(self) -> None:
        """See `Source.abandon`."""
        if self._call is not None:
            self._call.router.call_soon(self._drop_call)


class MergedSource(Source[T]):
    """Several streams as one: what comes first, first. Each keeps its own credit; an error of one ends all."""

    def __init__(self, labels: Sequence[Any], streams: "Sequence[ItemSource[Any]]") -> None:
        """Items come out as (label, item)."""
        super().__init__()
        self._labels, self._streams = labels, streams
        self._live = set(range(len(streams)))
        self._next = 0
        for stream in streams:
            stream.on_put = self._wake

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> T:
        """Wait for the next (label, item), taking turns among the streams that have one."""
        while True:
            if self._is_closed or not self._live:
                raise StopAsyncIteration
            index = self._ready()
            if index is None:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
                continue
            try:
                item = await self._streams[index].next()
            except StopAsyncIteration:
                self._live.discard(index)
                continue
            except BaseException:
                await self.aclose()
                raise
            return (self._labels[index], item)  # type: ignore[return-value]

    def _ready(self) -> int | None:
        count = len(self._streams)
        for step in range(count):
            index = (self._next + step) % count
            if index in self._live and self._streams[index]._items:
                self._next = index + 1
                return index
        return None

    async def aclose(self) -> None:
        """Close all of them."""
        await super().aclose()
        await asyncio.gather(*[stream.aclose() for stream in self._streams])

    def abandon(self) -> None:
        """See `Source.abandon`."""
        for stream in self._streams:
            stream.abandon()
