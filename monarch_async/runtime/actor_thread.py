"""The thread on which an actor's plain ``def`` endpoints run, one at a time, in order.

One thread per actor, not a pool: what an endpoint leaves in thread-locals (a CUDA context, a database connection) is
there for the next one. Answers go back to the loop in one wake-up for as many as are ready.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

Work = tuple[Callable[..., Callable[[], None]], Any, Any]


class ActorThread:
    """A daemon thread with a queue. Bounded by the windows of the senders."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        """Start at the first piece of work."""
        self._name, self._loop = name, loop
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._is_waking = False
        self._waiting: set[object] = set()  # requests that have neither begun nor been withdrawn
        self._lock = threading.Lock()  # of `_waiting`: a request begins, or is withdrawn
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[Any, Any], Callable[[], None]], request: object, method: object) -> None:
        """Run ``work(request, method)`` on the thread and what it returns on the loop."""
        self._ensure_started()
        with self._lock:
            self._waiting.add(request)
        self._queue.put((work, request, method))

    async def run(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread, in the caller's context; return or raise what it does."""
        outcome: asyncio.Future[T] = self._loop.create_future()
        context = contextvars.copy_context()

        def work(*_: object) -> Callable[[], None]:
            try:
                value = context.run(function)
            except BaseException as caught:
                error = caught
                return lambda: None if outcome.done() else outcome.set_exception(error)
            return lambda: None if outcome.done() else outcome.set_result(value)

        self.submit(work, outcome, None)
        return await outcome

    def withdraw(self, request: object) -> bool:
        """Take back work that has not begun; return False where it is running, or has run."""
        with self._lock:
            if request not in self._waiting:
                return False
            self._waiting.remove(request)
            return True

    def close(self) -> None:
        """End after what is running. What was queued is not begun. Closing twice is fine."""
        if self._thread is not None:
            while not self._queue.empty():
                self._queue.get_nowait()
            self._queue.put(None)

    def _ensure_started(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"actor {self._name}", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, request, method = item
            if self.withdraw(request):
                self._done.append(work(request, method))
                if not self._is_waking:
                    self._is_waking = True
                    try:
                        self._loop.call_soon_threadsafe(self._answer)
                    except RuntimeError:  # the loop has ended: so has the proc
                        return
            del item, work, request, method

    def _answer(self) -> None:
        self._is_waking = False
        done = self._done
        while done:
            try:
                done.popleft()()
            except Exception as error:  # the others are not to wait for it
                message = f"an answer from the thread of {self._name} could not be sent"
                self._loop.call_exception_handler({"message": message, "exception": error})
