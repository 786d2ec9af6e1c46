"""A function over many items: read as there is room, results as they finish."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from monarch_async.mesh.stream import End, Source
from monarch_async.tasks.future import TaskFuture


class TaskOutcome(NamedTuple):
    """What became of one item: its result, or its error."""

    item: Any
    value: Any
    error: BaseException | None


class MapSource(Source[Any]):
    """Where the results arrive.

    M1. Items that are read and whose result is not taken out yet are never more than the limit.
    M2. Nothing is read before the first result is asked for, nor after the first error that is to be raised; that is
        raised once, and is the end.
    """

    def __init__(
        self,
        submit: Callable[[Any], TaskFuture[Any]],
        items: Iterable[Any] | AsyncIterable[Any],
        limit: Callable[[], int],
        yields_errors: bool,
    ) -> None:
        """``limit`` says how many there may be now."""
        super().__init__()
        self._submit, self._limit, self._yields_errors = submit, limit, yields_errors
        self._iterator: Iterator[Any] | AsyncIterator[Any] | None = None
        self._given = items
        self._running: dict[TaskFuture[Any], Any] = {}
        self._open = 0  # items that count for the limit
        self._reading: asyncio.Task[None] | None = None
        self._is_read = False  # to its end, or as far as it will be
        self._has_failed = False
        self._loop = asyncio.get_running_loop()

    async def next(self) -> Any:
        """Wait for the next result."""
        self._read_on()
        return await super().next()

    def _taken(self, item: Any) -> Any:
        self._open -= 1
        self._read_on()
        return item

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Read items as far as there is room (M1)."""
        if self._is_read or self._is_closed or self._reading is not None:
            return
        if self._iterator is None:
            is_async = isinstance(self._given, AsyncIterable)
            self._iterator = aiter(self._given) if is_async else iter(self._given)  # type: ignore[arg-type]
        if isinstance(self._iterator, AsyncIterator):
            if self._open < self._limit():
                self._reading = self._loop.create_task(self._read(self._iterator))
                self._reading.add_done_callback(self._stop_reading)
            return
        try:
            while self._open < self._limit() and not self._is_read:
                self._begin(next(self._iterator))
        except StopIteration:
            self._read_all(None)
        except Exception as error:
            self._read_all(error)

    async def _read(self, iterator: AsyncIterator[Any]) -> None:
        try:
            while self._open < self._limit() and not self._is_read:
                self._begin(await anext(iterator))
        except StopAsyncIteration:
            self._read_all(None)
        except Exception as error:
            self._read_all(error)

    def _stop_reading(self, _: object) -> None:
        self._reading = None
        self._read_on()  # there may be room since

    def _begin(self, item: Any) -> None:
        try:
            future = self._submit(item)
        except Exception as error:
            if not self._yields_errors:
                raise
            self._open += 1
            self._put(TaskOutcome(item, None, error))
            return
        self._open += 1
        self._running[future] = item
        future.add_done_callback(self._done)

    def _read_all(self, error: Exception | None) -> None:
        """There are no more items, or there will be none since reading them failed."""
        self._is_read = True
        self._given = self._iterator = None  # type: ignore[assignment]
        if error is not None:
            self._finish(error)
        elif not self._running:
            self._finish(None)

    # -- results ---------------------------------------------------------------------------------------------------

    def _done(self, future: TaskFuture[Any]) -> None:
        item = self._running.pop(future, None)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if self._is_closed or self._has_failed:
            return
        if self._yields_errors:
            self._put(TaskOutcome(item, None if error is not None else future.result(), error))
        elif error is None:
            self._put(future.result())
        else:
            self._finish(error)
            return
        if self._is_read and not self._running:
            self._finish(None)
        else:
            self._read_on()  # a limit that follows the workers may have grown

    def _finish(self, error: BaseException | None) -> None:
        """This is the end (M2)."""
        self._is_read = True
        self._has_failed = error is not None
        self._put(End(error))
        if error is not None:
            self._drop_all()

    def _drop_all(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        for future in list(self._running):
            future.cancel()

    async def aclose(self) -> None:
        """Cancel what runs, and wait until that has ended."""
        await super().aclose()
        self._drop_all()
        left = [*self._running, *([self._reading] if self._reading is not None else [])]
        if left:
            await asyncio.wait(left)

    def abandon(self) -> None:
        """See `Source.abandon`."""
        if not self._is_closed and not self._loop.is_closed():
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._drop_all)
