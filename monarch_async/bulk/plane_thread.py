"""The data plane's thread: an event loop on which other loops run coroutines."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from monarch_async.errors import Closed
from monarch_async.transport.loop import run_loop

T = TypeVar("T")


class PlaneThread:
    """Started when it is made. ``loop`` is its loop."""

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        """Start, and wait (a millisecond or two) until the loop runs."""
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=run_loop, args=(self._serve(),), name="data plane", daemon=True)
        self._thread.start()
        self._is_ready.wait()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._is_ready.set()
        await self._stop.wait()

    @property
    def is_here(self) -> bool:
        """Whether this code runs on it."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], T]) -> T:
        """Call a function there, and block until it returns; for what is short."""
        if self.is_here:
            return function()

        async def wrapped() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(wrapped(), self.loop).result()

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function there, later; not at all once it has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` there; await its end from any loop.

        Cancelling waits until ``work`` has ended, so that it touches nothing of the caller's afterwards. Raises what
        ``work`` does, and Closed where the thread has ended.
        """
        here = asyncio.get_running_loop()
        if here is self.loop:
            return await work
        ended: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self.loop.create_task(work)
            tasks.append(task)
            task.add_done_callback(report)

        def report(task: asyncio.Task[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop that waited is gone
                here.call_soon_threadsafe(_settle, ended, task)

        try:
            self.loop.call_soon_threadsafe(begin)
        except RuntimeError:
            work.close()
            raise Closed("the data plane of this process") from None
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            self.call_soon(lambda: tasks[0].cancel())
            while not ended.done():
                with contextlib.suppress(asyncio.CancelledError):  # once is enough
                    await asyncio.wait([ended])
            if not ended.cancelled():
                ended.exception()  # looked at
            raise
        return ended.result()

    def close(self) -> None:
        """End the loop, cancelling what runs there, and wait for the thread. Twice is fine."""
        self.call_soon(lambda: self._stop.set())
        if not self.is_here:
            self._thread.join()


def _settle(ended: "asyncio.Future[T]", task: "asyncio.Task[T]") -> None:
    if task.cancelled():
        ended.cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())
