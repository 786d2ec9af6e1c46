"""Threads that wait for what the loop does."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from monarch_async.ray.entry import Entry

T = TypeVar("T")


class Arrival:
    """Counts an entry as it is done; one that has failed ends the waiting."""

    __slots__ = ("_countdown", "entry")

    def __init__(self, countdown: "Countdown", entry: Entry) -> None:
        """``entry`` is waited for."""
        self._countdown, self.entry = countdown, entry

    def __call__(self) -> None:
        """It is done."""
        if self.entry.error is not None:
            self._countdown.end()
        else:
            self._countdown()


class Waiter(Generic[T]):
    """A thread that waits for a coroutine on the loop. (`asyncio.run_coroutine_threadsafe`, at half the price.)"""

    __slots__ = ("_is_done", "_task")

    def __init__(self) -> None:
        """Not begun."""
        self._is_done = threading.Lock()
        self._is_done.acquire()
        self._task: asyncio.Task[T] | None = None

    def begin(self, start: Callable[[Coroutine[Any, Any, T]], "asyncio.Task[T]"], work: Coroutine[Any, Any, T]) -> None:
        """On the loop."""
        self._task = start(work)
        self._task.add_done_callback(lambda _: self._is_done.release())

    def give_up(self, start: object, work: Coroutine[Any, Any, T]) -> None:
        """There is no loop any more."""
        work.close()
        self._is_done.release()

    def wait(self, post: Callable[..., None]) -> T:
        """Return what it returns; who is interrupted meanwhile cancels it."""
        try:
            self._is_done.acquire()
        except BaseException:
            post(self._cancel)
            raise
        if self._task is None or self._task.cancelled():
            raise RuntimeError("the session of the ray facade has ended")
        return self._task.result()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Countdown:
    """Wakes the thread that waits after so many calls."""

    __slots__ = ("_left", "_lock", "_over")

    def __init__(self, count: int) -> None:
        """``count`` is positive."""
        self._left, self._lock, self._over = count, threading.Lock(), threading.Lock()
        self._over.acquire()

    def __call__(self) -> None:
        """One more. On any thread."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._over.release()

    def end(self) -> None:
        """No more are waited for."""
        with self._lock:
            if self._left > 0:
                self._left = 0
                self._over.release()

    def wait(self, timeout: float | None) -> bool:
        """Return whether they have come in time."""
        return self._over.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
