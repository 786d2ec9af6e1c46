"""Reads offered memory (`same_host`) without stopping the loop: on one thread, started when first needed."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from monarch_async.runtime.same_host import read_parts

#: A payload of up to this size takes less time to read than to hand to a thread.
_AT_ONCE = 1 << 20


class Reader:
    """One per router."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """No thread yet."""
        self._loop = loop
        self._thread: ThreadPoolExecutor | None = None

    def read(self, offer: Sequence[object], views: Sequence[memoryview], done: Callable[[bool], None]) -> None:
        """Fill ``views`` from an offer, then call ``done`` on the loop with whether that was possible."""
        if sum(map(len, views)) <= _AT_ONCE:
            done(read_parts(offer, views))
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="reader")
        reading = self._loop.run_in_executor(self._thread, read_parts, offer, views)
        reading.add_done_callback(lambda finished: finished.cancelled() or done(finished.result()))

    def close(self) -> None:
        """End the thread after what it reads now."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
