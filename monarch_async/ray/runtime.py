"""What the facade needs in every process: the loop, objects, and the way to the hub.

Its functions are called on the user's threads; all that is said to others is said on the loop: in the driver that of a
thread of its own, in a worker the process's.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol, TypeVar

from monarch_async.errors import Error
from monarch_async.ids import host_of, random_id64
from monarch_async.mesh.domain import Domain, find_domain
from monarch_async.ray.borrowing import Borrowing
from monarch_async.ray.calling import Calling
from monarch_async.ray.context import RunningContext, lending, running
from monarch_async.ray.entry import OVER, Entry
from monarch_async.ray.exceptions import OwnerDiedError, as_ray_error
from monarch_async.ray.living import node_id_of
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.waiting import Arrival, Countdown, Waiter

T = TypeVar("T")


class HubAccess(Protocol):
    """How a process asks the hub."""

    async def ask(self, operation: str, *args: object) -> Any:
        """Ask; raises what is raised there."""
        ...

    def tell(self, operation: str, args: tuple[object, ...]) -> Awaitable[Any] | None:
        """Say something now, in order; what is returned is to be awaited by somebody."""
        ...


class Waitable(Protocol):
    """An entry, or a generator."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""
        ...

    def when_done(self, callback: Callable[[], object]) -> bool:
        """Have this called then; False: it is so already."""
        ...

    def forget(self, callback: Callable[[], object]) -> None:
        """Undo `when_done`."""
        ...


class Runtime:
    """One per process; see `current`."""

    def __init__(self, domain: Domain, hub: HubAccess, *, is_driver: bool) -> None:
        """``hub``: the way to it."""
        self.domain, self.hub_access, self.is_driver = domain, hub, is_driver
        self.loop, self.address = domain.router.loop, domain.router.address
        self.namespace, self.job_id = "", "01000000"
        self.node_address = ""  #: where the host is reached, once it is known
        self.outside = RunningContext()
        self.runtime_env: Mapping[str, Any] | None = None  #: of the job
        self._thread = domain.holdings.thread
        self._numbers = itertools.count(random_id64() >> 1)  # no two processes' meet
        self._inbox: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._context = Context()
        self.awaited: set[Entry] = set()  #: those of which somebody wants to know when they are there
        self.is_over = False
        self.leaving: list[Callable[[Runtime], Awaitable[None]]] = []  #: awaited before this process says that it ends
        self.store = domain.store_agent(0)  #: the address of the agent that keeps what is put here
        self.borrowing = Borrowing(self)
        self.calling = Calling(self)

    # -- the loop --------------------------------------------------------------------------------------------------

    def post(self, work: Callable[..., object], *args: Any) -> None:
        """Have ``work(*args)`` called on the loop, soon, in the order in which it was said. On any thread.

        Not in the thread's context: that may be just in the middle of pickling something, and nobody here is.
        """
        self._inbox.append((work, args))
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._drain, context=self._context)
            except RuntimeError:  # the loop is closed: all is over
                self._is_woken = False
                self.abandon()

    def _drain(self) -> None:
        self._is_woken = False
        inbox = self._inbox
        while inbox:
            work, args = inbox.popleft()
            try:
                work(*args)
            except Exception as error:
                self.report(f"{work!r} failed", error)

    def report(self, what: str, error: Exception) -> None:
        """Log an error of which nobody is told otherwise. On any thread."""
        self.loop.call_exception_handler({"message": f"ray facade: {what}", "exception": error})

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a task, on the loop. What it raises is logged."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def is_on_loop(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def check_may_wait(self, what: str, instead: str) -> None:
        """Raise RuntimeError where waiting would stop the loop that brings what is waited for."""
        if self.is_on_loop:
            raise RuntimeError(f"{what} would block the event loop it runs on, for ever: use `{instead}`")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its end. On any other thread."""
        if self.is_on_loop:
            work.close()
            raise RuntimeError("this call would block the event loop it runs on: call it from a plain method")
        if self.is_over or self.loop.is_closed():
            work.close()
            raise RuntimeError("the session of the ray facade has ended: init() begins another")
        waiter: Waiter[T] = Waiter()
        self.post(waiter.begin, self.start, work)
        if self.loop.is_closed():
            self.abandon()
        return waiter.wait(self.post)

    def abandon(self) -> None:
        """The loop has ended: who waits for what it was to do is told. On any thread."""
        while self._inbox:
            with contextlib.suppress(IndexError):
                work, args = self._inbox.popleft()
                if isinstance(waiter := getattr(work, "__self__", None), Waiter):
                    waiter.give_up(*args)

    def tell_hub(self, operation: str, *args: object) -> None:
        """Say something to the hub, now, in order; what comes of it nobody waits for. On the loop."""
        told = self.hub_access.tell(operation, args)
        if told is not None:
            self.start(_heard(told))

    @property
    def hub_address(self) -> int:
        """The process that the hub is in: the driver, and for a detached actor the one that has adopted it last."""
        return self.domain.root

    async def hub(self, operation: str, *args: object) -> Any:
        """Ask the hub. Raises what it raises."""
        return await self.hub_access.ask(operation, *args)

    def ask_hub(self, operation: str, *args: object) -> Any:
        """Ask the hub, and wait for its answer. On any thread but the loop's. Raises what it raises."""
        return self.run(self.hub(operation, *args))

    async def leave(self) -> None:
        """This process is about to end, in order: what was kept for later is sent."""
        await asyncio.gather(*[work(self) for work in self.leaving], return_exceptions=True)

    async def aclose(self) -> None:
        """Nothing more is sent. Who waits for an object is told."""
        self.is_over = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.calling.close()
        for entry in list(self.awaited):
            if not entry.is_done:
                entry.fail(OwnerDiedError(f"{entry.number:x}", why=OVER))

    # -- objects ---------------------------------------------------------------------------------------------------

    def new_entry(self, what: str) -> Entry:
        """Return a new object of this process. On any thread."""
        return Entry(self, next(self._numbers), what)

    def take_number(self) -> int:
        """Return the number of an object that the hub is to own. On any thread."""
        return next(self._numbers)

    def borrowed(self, number: int) -> ObjectRef[Any]:
        """Return a reference to an object of the hub, which knows that this process has it."""
        return ObjectRef(self.borrowing.borrow(self.hub_address, number, None, is_known=True))

    def error_of(self, entry: Entry) -> BaseException:
        """Return what an entry failed with, as Ray's error; a new one each time."""
        assert entry.error is not None
        entry.see()
        return as_ray_error(entry.error, entry.what, entry.actor)

    def free(self, refs: Sequence[ObjectRef[Any]]) -> None:
        """Let go of the values of these objects, whoever refers to them. On any thread."""
        for ref in refs:
            self.borrowing.free(ref._entry)

    def wait_all(self, entries: Sequence[Entry], timeout: float | None) -> bool:
        """Wait on this thread until all entries are done, or one has failed; return whether that is in time."""
        waiting = [entry for entry in entries if not entry.is_done]
        if not waiting or any(entry.error is not None for entry in entries):
            return True
        countdown = Countdown(len(waiting))
        return self._wait(countdown, [(entry, Arrival(countdown, entry)) for entry in waiting], timeout)

    def wait_done(self, entries: Sequence[Waitable], count: int, timeout: float | None) -> bool:
        """Wait on this thread until ``count`` of the entries are done; return whether they are in time."""
        waiting = [entry for entry in entries if not entry.is_done]
        missing = count - len(entries) + len(waiting)
        if missing <= 0:
            return True
        countdown = Countdown(missing)
        return self._wait(countdown, [(entry, countdown) for entry in waiting], timeout)

    def _wait(
        self, countdown: Countdown, waiting: Sequence[tuple[Waitable, Callable[[], object]]], timeout: float | None
    ) -> bool:
        """Wait for the countdown, which is told of each when it is done."""
        self.check_may_wait("ray.get or ray.wait", "await ref")
        for entry, told in waiting:
            if not entry.when_done(told):
                told()
        with lending():
            is_in_time = countdown.wait(timeout)
        for entry, told in waiting:
            if not entry.is_done:
                entry.forget(told)
        return is_in_time

    # -- what runs here --------------------------------------------------------------------------------------------

    @property
    def context(self) -> RunningContext:
        """What runs on this thread, or in this task of the loop."""
        return running.get() or self.outside

    @property
    def node_id(self) -> str:
        """The id of this process's host."""
        return node_id_of(host_of(self.address) if not self.is_driver else self.domain.hosts[0].id)

    @property
    def outer_env(self) -> Mapping[str, Any] | None:
        """The runtime environment of what runs here, or of the job: what is made here has it, too."""
        return self.context.runtime_env or self.runtime_env


async def _heard(told: Awaitable[Any]) -> None:
    with contextlib.suppress(Error):
        await told


_current: Runtime | None = None
_lock = threading.RLock()


def current() -> Runtime:
    """Return this process's runtime. Where there is none: in the driver it is begun, as `init` does."""
    runtime = _current
    if runtime is not None and not runtime.is_over:
        return runtime
    from monarch_async.ray import driver, worker

    with _lock:  # threads may come here at a time
        if (found := find()) is not None:
            return found
        domain = find_domain()
        if domain is not None and host_of(domain.root) != host_of(domain.router.address):
            return worker.begin(domain)
        driver.init()
    assert _current is not None
    return _current


def find() -> Runtime | None:
    """Return this process's runtime, if it has begun."""
    return _current if _current is not None and not _current.is_over else None


def set_current(runtime: Runtime | None) -> None:
    """It begins, or has ended."""
    global _current
    _current = runtime
