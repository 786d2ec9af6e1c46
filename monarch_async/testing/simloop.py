"""An event loop with virtual time for tests: asyncio's answer to trio's autojump clock.

    result = simloop.run(main(), seed=7)

- Time stands still while anything can run and jumps to the next timer when nothing can, so an hour's
  timeout costs nothing and `loop.time()` is exact.
- The steps of tasks that are ready together run in an order drawn from the seed: asyncio promises first-in
  first-out for plain callbacks only. The same seed gives the same run.
- When nothing can ever run again it raises `Deadlock` with the tasks that wait and where, instead of
  hanging.

Sockets, child processes and threads have no place in it: they answer in real time, which the clock would
jump past. Work for an executor is done at once, on the loop's own thread; other I/O ends in `Deadlock`.
Code under test reads the loop's clock (`loop.time()`), never `time.monotonic()`.

asyncio has no public hook for its clock's jump nor for the order of steps. This uses
`BaseEventLoop._run_once`, `_ready`, `_scheduled`, `_clock_resolution` and `Handle._callback`, the same from
3.11 to 3.13; its tests hold them to it.
"""

import asyncio
import inspect
import math
import random
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from pathlib import PurePath
from typing import Any, TypeVar, TypeVarTuple, Unpack

from monarch_async.errors import Error

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(Error):
    """Every task waits and no timer is set: the test would hang. ``waiting`` has a line for each task."""

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__(waiting)
        self.waiting = waiting

    def __str__(self) -> str:
        tasks = "".join(f"\n  {line}" for line in self.waiting) or " no task"
        return f"nothing can ever run again; waiting:{tasks}"


def run(main: Coroutine[Any, Any, T], seed: int = 0) -> T:
    """Run ``main`` on a new `SimLoop` and return its result; tasks left over are cancelled at the end.

    Raises what ``main`` raises, and `Deadlock`.
    """
    with asyncio.Runner(loop_factory=lambda: SimLoop(seed)) as runner:
        return runner.run(main)


class _Poll(selectors.DefaultSelector):
    """A selector that asks for what is ready and hands every wait to the loop."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._wait()
        return ready


class SimLoop(asyncio.SelectorEventLoop):
    """The loop behind `run`. Its clock starts at 0."""

    def __init__(self, seed: int = 0) -> None:
        self._now = 0.0
        self._random = random.Random(seed)
        super().__init__(_Poll(self._jump))
        self._set_time(0.0)

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self._now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call ``func`` now, on this thread: a real one would answer while the clock has jumped ahead."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _set_time(self, now: float) -> None:
        self._now = now
        # Timers due within the resolution run as one; it must not vanish beside a large `now`.
        self._clock_resolution = max(1e-9, 2 * math.ulp(now))

    def _jump(self) -> None:
        """Go to the next timer: the loop would sleep, for a time or for ever."""
        # To the timer itself: adding the timeout to `now` can round back to `now` and spin.
        timers: list[asyncio.TimerHandle] = self._scheduled  # pyright: ignore[reportAttributeAccessIssue]
        due = timers[0].when() if timers else math.inf
        if due == math.inf:
            raise Deadlock(tuple(sorted(map(_describe, asyncio.all_tasks(self)))))
        self._set_time(max(self._now, due))

    def _run_once(self) -> None:
        # Every task step of this turn is in `_ready` by now: timers due add plain callbacks only.
        ready = self._ready  # pyright: ignore[reportAttributeAccessIssue]
        slots = [i for i, handle in enumerate(ready) if _is_step(handle)]
        steps = [ready[i] for i in slots]
        self._random.shuffle(steps)
        for i, handle in zip(slots, steps, strict=True):
            ready[i] = handle
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue]


def _is_step(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _describe(task: asyncio.Task[Any]) -> str:
    """Return the task's name and the calls it waits in: ``Task-1: main (a.py:3) > get (queues.py:158)``."""
    calls, awaited = [], task.get_coro()
    while awaited is not None:
        if inspect.iscoroutine(awaited):
            frame, deeper = awaited.cr_frame, awaited.cr_await
        elif inspect.isgenerator(awaited):
            frame, deeper = awaited.gi_frame, awaited.gi_yieldfrom
        else:
            break  # a future, or something written in C
        if frame is not None:
            file = PurePath(frame.f_code.co_filename).name
            calls.append(f"{awaited.__qualname__} ({file}:{frame.f_lineno})")
        awaited = deeper
    return f"{task.get_name()}: {' > '.join(calls)}"
