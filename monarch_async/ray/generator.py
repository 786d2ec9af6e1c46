"""Streaming calls: a generator of references to what a remote generator yields, each there as it comes."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_async.ray.context import lending
from monarch_async.ray.entry import OVER, Entry
from monarch_async.ray.exceptions import (
    GetTimeoutError,
    OwnerDiedError,
    RayTaskError,
    cancelled,
)
from monarch_async.ray.object_ref import ObjectRef

if TYPE_CHECKING:
    from monarch_async.ray.runtime import Runtime


class ObjectRefGenerator:
    """Yields an `ObjectRef` for each item, with ``for`` or ``async for``. An error is that of the last reference."""

    def __init__(self, runtime: "Runtime", what: str, most: int | None = None) -> None:
        """No items yet. ``what`` names the call; ``most`` items wait here unread, beside those of the native stream."""
        self._runtime, self._what = runtime, what
        self._items: deque[Entry] = deque()
        self._has_ended = False
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[], object]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._most = most if most is not None and most > 0 else 0
        self._room = asyncio.Event()
        self._following: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self.withdraw: Callable[[], object] | None = None  #: takes the call back where nothing is followed yet
        self._completed = runtime.new_entry(what)

    # -- filled on the loop ----------------------------------------------------------------------------------------

    def push(self, entry: Entry) -> None:
        """One more is there, or has failed."""
        with self._changed:
            self._items.append(entry)
            self._changed.notify_all()
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """No more come. Twice is fine: the first counts."""
        if self._has_ended:
            return
        if error is not None:
            entry = self._runtime.new_entry(self._what)
            entry.fail(error)
            self.push(entry)
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        if error is None or isinstance(error, RayTaskError):  # what it raised itself is that of its last reference
            self._completed.complete(b"\x80\x05N.")
        else:
            self._completed.fail(error)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.get_loop().call_soon_threadsafe(lambda waiter=waiter: waiter.done() or waiter.set_result(None))

    async def follow(self, source: Any) -> None:
        """Take what a native stream brings, or references where they are another process's."""
        self._following = asyncio.current_task()
        if self._is_cancelled:
            self.cancel(False)
        try:
            async for item in source:
                if isinstance(item, ObjectRef):
                    entry = item._entry
                else:
                    entry = self._runtime.new_entry(self._what)
                    entry.complete(item)
                self.push(entry)
                await self.wait_room()
        except asyncio.CancelledError:
            self.end(cancelled(self._what))
            await source.aclose()
            if not self._is_cancelled:
                raise
        except BaseException as error:
            self.end(error)
        else:
            self.end()

    async def wait_room(self) -> None:
        """Wait until more items may come."""
        while self._most and len(self._items) >= self._most:
            self._room.clear()
            await self._room.wait()

    def _take(self) -> ObjectRef[Any]:
        entry = self._items.popleft()
        if self._most:
            self._runtime.post(self._room.set)
        return ObjectRef(entry)

    def cancel(self, by_force: bool) -> None:
        """Nobody wants it any more. On the loop."""
        self._is_cancelled = True
        if self._following is not None:
            self._following.cancel()
        elif self.withdraw is not None:
            self.withdraw()

    # -- read on any thread ----------------------------------------------------------------------------------------

    def __iter__(self) -> "ObjectRefGenerator":
        return self

    def __next__(self) -> ObjectRef[Any]:
        return self._next_sync(None)

    def _next_sync(self, timeout_s: float | None = None) -> ObjectRef[Any]:
        if not self._items and not self._is_at_end():
            self._runtime.check_may_wait("next() of a stream", "async for ref in generator")
            with lending(), self._changed:
                if not self._changed.wait_for(lambda: self._items or self._has_ended, timeout_s):
                    raise GetTimeoutError(f"{self._what}: no item came within {timeout_s:g} s")
        if self._items:
            return self._take()
        raise StopIteration

    def __aiter__(self) -> "ObjectRefGenerator":
        return self

    async def __anext__(self) -> ObjectRef[Any]:
        while not self._items:
            if self._has_ended:
                raise StopAsyncIteration
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            if self._items or self._has_ended:
                continue
            with lending():
                await waiter
        return self._take()

    def completed(self) -> ObjectRef[Any]:
        """Return a reference that is there, or fails, once the call has ended."""
        return ObjectRef(self._completed)

    def next_ready(self) -> bool:
        """Return whether `next` would not wait."""
        return bool(self._items) or self._has_ended

    @property
    def is_done(self) -> bool:
        """See `runtime.Waitable`."""
        return self.next_ready()

    def when_done(self, callback: Callable[[], object]) -> bool:
        """See `runtime.Waitable`."""
        if self._items or self._is_at_end():
            return False
        with self._changed:
            if self._items or self._has_ended:
                return False
            self._callbacks.append(callback)
            return True

    def _is_at_end(self) -> bool:
        """Whether no more come; where the session is over none does."""
        if not self._has_ended and self._runtime.is_over:
            self.end(OwnerDiedError(why=OVER))
        return self._has_ended

    def forget(self, callback: Callable[[], object]) -> None:
        """See `runtime.Waitable`."""
        with self._changed:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def is_finished(self) -> bool:
        """Return whether all items have been read."""
        return self._has_ended and not self._items

    def __reduce__(self) -> Any:
        raise TypeError("a generator of references cannot be sent elsewhere: send its references")

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._what})"


DynamicObjectRefGenerator = ObjectRefGenerator
