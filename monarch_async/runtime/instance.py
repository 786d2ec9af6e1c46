"""An actor in its proc: takes calls in order, runs them, answers.

    Starting   __init__ and setup run; calls wait in the mailbox
    Running    calls start in the order they came
    Failed     __init__ or setup raised: every call is answered with that error
    Stopped    an orderly stop has begun: running calls are cancelled, new ones refused

I1. Calls start in arrival order: `async` ones on the loop, up to ``max_concurrency`` at a time, plain ``def`` ones on
    the actor's own thread, one at a time; with ``max_concurrency`` 1 one call of any style runs at a time.
I2. Every call that wants a reply gets exactly one.
I3. Stop, cancel and introspection do not queue behind calls.
I4. A call whose callers already fill the actor is refused with `WouldDeadlock` and not queued.

An endpoint that never awaits is run to its end where it arrives, without a task (unless one that arrived before it
still waits for its task to begin: I1).
"""

import asyncio
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_async.errors import ActorDied, Error, NotAnEndpoint, WouldDeadlock
from monarch_async.ranks import Extent
from monarch_async.runtime.actor import Interface, Style, interface_of
from monarch_async.runtime.actor_thread import ActorThread
from monarch_async.runtime.answers import Answers, Request
from monarch_async.runtime.birth import Method, Recipe, bind, construct, find_hook, needs_thread, read_recipe, run_hook
from monarch_async.runtime.context import ActorLog, Context, _current, enter_hook
from monarch_async.runtime.delivery import SPAWN
from monarch_async.runtime.ending import tear_down
from monarch_async.runtime.outgoing import Parcel
from monarch_async.runtime.producer import Producer
from monarch_async.runtime.report import describe, format_traceback, pack_error
from monarch_async.wire.frame import WANTS_REPLY
from monarch_async.wire.message import CallFields
from monarch_async.wire.payload import Buffer, Encoded

T = TypeVar("T")

if TYPE_CHECKING:
    from monarch_async.runtime.proc import Proc

class State(Enum):
    """See the module."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPED = "stopped"


class Instance:
    """One member of an actor mesh. ``owner`` is (proc address, actor id) of who spawned it."""

    def __init__(
        self, proc: "Proc", actor_id: int, name: str, rank: int, extent: Extent, owner: tuple[int, int], is_alone: bool
    ) -> None:
        """Nothing runs before `start`."""
        self.proc, self.id, self.name, self.rank, self.extent, self.owner = proc, actor_id, name, rank, extent, owner
        self.label = name if is_alone else f"{name}[{rank}]"
        self.state = State.STARTING
        self.actor: object = None
        self.interface: Interface | None = None
        #: What waits, oldest first, by (sender, call): one that is cancelled is found at once.
        self.mailbox: OrderedDict[tuple[int, int], Request] = OrderedDict()
        self.running: dict[tuple[int, int], Request] = {}
        self.max_concurrency = 1000
        self._slots = 0
        self._unstarted = 0  # calls that were given a task which has not begun
        self._methods: dict[str, Method] = {}
        self._thread: ActorThread | None = None
        self.failure: bytes = b""  #: the report that late calls get
        self._hook = "__init__"  # which of the hooks that start it runs
        self._starting: asyncio.Task[object] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._router = proc.router
        self.answers = Answers(
            proc.router,
            self.label,
            proc.info.host,
            extent.point(rank),
            lambda report: proc.report_failure(self, report, False),
        )

    @cached_property
    def logger(self) -> ActorLog:
        """See `Context.log`."""
        return ActorLog(self.label, self.proc.info.host)

    # -- start and stop --------------------------------------------------------------------------------------------

    async def start(self, make: Callable[[], Recipe]) -> bytes | None:
        """Construct the actor and run ``setup``; return None, or the report of what failed."""
        enter_hook(self, "__init__")
        self._starting = asyncio.current_task()
        try:
            recipe = read_recipe(self.name, make)
            cls = recipe[0]
            self.interface = interface_of(cls)
            self.max_concurrency = cls.max_concurrency
            if needs_thread(self.interface):
                self._thread = ActorThread(self.label, self._router.loop)
            self.actor, failure = await construct(recipe, self._thread)
            if failure is not None:
                raise failure
            self._methods = bind(cls, self.actor)
            if setup := find_hook(self.actor, "setup"):
                self._hook = "setup"
                enter_hook(self, "setup")
                await run_hook(setup)
        except BaseException as error:
            return self.failure if self.state is State.STOPPED else self._fail(error)
        if self.state is State.STOPPED:
            return self.failure
        self.state = State.RUNNING
        return None

    def open(self) -> None:
        """Begin the calls that have waited; whoever made the actor has been told that it is up."""
        self._advance()

    def _fail(self, error: BaseException) -> bytes:
        """``__init__`` or ``setup`` raised: that is the answer to everything waiting, and from now on."""
        self.state = State.FAILED
        report = self.answers.report(error, self._hook)
        reason = f"its {self._hook} raised {describe(error)}"
        died = ActorDied(self.label, self.proc.info.host, reason, format_traceback(error))
        self.failure = pack_error(died, error)
        for request in self.mailbox.values():
            self.answers.refused(request, report)
        self.mailbox.clear()
        self._let_go()
        return report

    async def stop(self, reason: str) -> None:
        """Cancel what runs, refuse what waits, run ``teardown``, end what it spawned. Stopping again waits for that.

        ``reason`` is what callers are told; empty where the failure to tell them is set already.
        """
        if self._stopping is None:
            had_actor = self.state is State.RUNNING
            self._stopping = self._router.loop.create_task(self._wind_down(self._refuse_all(reason), had_actor))
        await asyncio.shield(self._stopping)  # who waits may be cancelled: the old actor ends all the same

    def _refuse_all(self, reason: str) -> list[asyncio.Task[None]]:
        """Enter Stopped; return what was running, already cancelled."""
        if self.state is State.STARTING and self._starting is not None:
            self._starting.cancel()
        self.state = State.STOPPED
        if reason:
            self.failure = pack_error(ActorDied(self.label, self.proc.info.host, reason))
        for request in self.mailbox.values():
            self.answers.refused(request, self.failure)
        self.mailbox.clear()
        tasks = [request.task for request in self.running.values() if request.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _wind_down(self, cancelled: list[asyncio.Task[None]], had_actor: bool) -> None:
        if cancelled:
            await asyncio.wait(cancelled, timeout=self._router.config.stop_grace)
        try:
            if had_actor:
                await tear_down(self, self._router.config)
        finally:
            if self._thread is not None:
                self._thread.close()
            for key, request in list(self.running.items()):
                del self.running[key]
                self.answers.failed(request, self.failure)
            self._let_go()
            await self.proc.release(self)

    def _let_go(self) -> None:
        """Keep nothing of the actor: this answers late calls for as long as the proc lives."""
        self.actor = None
        self._methods.clear()

    async def fail(self, died: ActorDied, cause: BaseException) -> None:
        """End by a failure of its own, outside of any endpoint: tell its owner and all callers, then stop."""
        if self.state is State.STOPPED:
            return
        self.failure = pack_error(died, cause)
        owner = self.owner[0]
        waiting = [*self.mailbox.values(), *self.running.values()]
        is_delivered = self.state is State.STARTING or any(
            request.src == owner and request.flags & WANTS_REPLY for request in waiting
        )
        self.proc.report_failure(self, self.failure, is_delivered)
        await self.stop("")

    # -- calls in --------------------------------------------------------------------------------------------------

    def accept(
        self, src: int, call: int, flags: int, fields: CallFields, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Take one call (`delivery.Target`)."""
        request = Request(src, call, flags, fields.endpoint, skeleton, buffers, self._router.delivery.arriving)
        request.credit = fields.credit
        if fields.chain:
            request.context = Context(self, fields.endpoint, src, call, fields.chain)
            if self._would_deadlock(fields.chain):
                chain = [*(name for _, _, name in fields.chain), f"{self.label}.{fields.endpoint}"]
                self.answers.failed(request, pack_error(WouldDeadlock(self.label, chain, self.max_concurrency)))
                return
        if self.state is State.RUNNING:
            if self.mailbox or self._slots >= self.max_concurrency:
                self.mailbox[(src, call)] = request
                self._advance()
            else:
                self._begin(request)
        elif self.state is State.STARTING:
            self.mailbox[(src, call)] = request
        elif fields.endpoint == SPAWN:
            self.proc.respawn(request, self.id)
        else:
            self.answers.refused(request, self.failure)

    def _would_deadlock(self, chain: list[tuple[int, int, str]]) -> bool:
        """I4: every slot is held by a call that waits, through ``chain``, for this one."""
        own = sum(1 for actor, rank, _ in chain if actor == self.id and rank == self.rank)
        return own >= self.max_concurrency

    def _advance(self) -> None:
        mailbox = self.mailbox
        while mailbox and self.state is State.RUNNING and self._slots < self.max_concurrency:
            self._begin(mailbox.popitem(last=False)[1])

    def _begin(self, request: Request) -> None:
        found = self._methods.get(request.endpoint)
        if found is None:
            self.answers.refused(request, pack_error(self._no_such(request.endpoint)))
            return
        method, style, is_immediate = found
        request.style = style
        context = request.context
        if context is None:
            context = request.context = Context(self, request.endpoint, request.src, request.call, None)
        if not request.flags & WANTS_REPLY:
            self.answers.started(request)
        self.proc.watch_loop(self)
        if is_immediate and not self._unstarted:
            self._run_now(request, method)
            return
        self.running[(request.src, request.call)] = request
        request.since = time.monotonic()
        if style is not Style.THREAD or self.max_concurrency == 1:
            request.holds_slot = True
            self._slots += 1
        if style is Style.THREAD:
            assert self._thread is not None
            self._thread.submit(self._run_on_thread, request, method)
            return
        if style is Style.STREAM:
            work: Coroutine[Any, Any, None] = self._run_stream(request, method)
        else:
            work = self._run(request, method)
        token = _current.set(context)
        self._unstarted += 1
        request.task = self._router.loop.create_task(work)
        _current.reset(token)

    def _run_now(self, request: Request, method: Callable[..., Coroutine[Any, Any, object]]) -> None:
        """Run an endpoint that never awaits, without a task."""
        try:
            copy_context().run(self._step, request, method)
        except StopIteration as stop:
            self.answers.value(request, stop.value)
        except BaseException as error:  # also a SystemExit: that is the caller's to know, the proc lives on
            self.answers.raised(request, error)
        else:
            raise AssertionError("an endpoint without await suspended")
        finally:
            assert request.context is not None
            request.context.is_over = True

    def _step(self, request: Request, method: Callable[..., Coroutine[Any, Any, object]]) -> None:
        self._call(request, method).send(None)

    def _call(self, request: Request, method: Callable[..., T]) -> T:
        """Call the method as ``request``, in a copy of the context variables, so that none it sets outlives it."""
        _current.set(request.context)
        args, kwargs = request.take_arguments(self.label)
        return method(*args, **kwargs)

    async def _run(self, request: Request, method: Callable[..., Coroutine[Any, Any, object]]) -> None:
        self._unstarted -= 1
        try:
            args, kwargs = request.take_arguments(self.label)
            value = await method(*args, **kwargs)
        except BaseException as error:
            self._raised(request, error)
        else:
            if self._end(request):
                self.answers.value(request, value)

    async def _run_stream(self, request: Request, method: Callable[..., Any]) -> None:
        self._unstarted -= 1
        config = self._router.config
        producer = Producer(self, request, request.credit or (config.stream_items, config.stream_bytes))
        try:
            args, kwargs = request.take_arguments(self.label)
            await producer.run(method(*args, **kwargs))
        except BaseException as error:
            self._raised(request, error)
        else:
            if self._end(request):
                self.answers.value(request, None)

    def _run_on_thread(self, request: Request, method: Callable[..., object]) -> Callable[[], None]:
        """Run a plain ``def`` endpoint; called on the actor's thread; what it returns is called on the loop."""
        try:
            ready = self.answers.prepare(request, copy_context().run(self._call, request, method))
        except BaseException as caught:
            error = caught
            return lambda: self._raised(request, error)
        return lambda: self._thread_done(request, ready)

    def _thread_done(self, request: Request, ready: Encoded | Parcel) -> None:
        if self._end(request):
            self.answers.prepared(request, ready)

    def _raised(self, request: Request, error: BaseException) -> None:
        """An endpoint has ended with ``error``, which may be the cancellation that its caller, or `stop`, asked for."""
        if not self._end(request):
            return
        if request.is_abandoned:
            trace = format_traceback(error)
            self.logger.error("%s, which its caller had cancelled, raised:\n%s", request.endpoint, trace)
        elif not isinstance(error, asyncio.CancelledError):
            self.answers.raised(request, error)
        elif request.is_cancelled:
            self.answers.cancelled(request)
        elif self.state is State.STOPPED:
            self.answers.failed(request, self.failure)
        else:
            self.answers.raised(request, error)

    def _end(self, request: Request) -> bool:
        """Free the slot; return whether the call was still running (not cancelled, not stopped)."""
        was_running = self.running.pop((request.src, request.call), None) is not None
        if request.context is not None:
            request.context.is_over = True
        request.task = None
        if request.holds_slot:
            request.holds_slot = False
            self._slots -= 1
        if self.mailbox:
            self._router.loop.call_soon(self._advance)
        return was_running

    # -- cancel, credit --------------------------------------------------------------------------------------------

    def cancel(self, src: int, call: int) -> None:
        """Cancel a call; its end is the acknowledgement (`delivery.Target`)."""
        request = self.running.get((src, call))
        if request is None:
            waiting = self.mailbox.pop((src, call), None)
            if waiting is not None:
                self.answers.cancelled(waiting)
            return  # where it is already answered, that is the acknowledgement
        if request.is_cancelled or not request.flags & WANTS_REPLY:
            return
        request.is_cancelled = True
        if request.task is not None:
            request.task.cancel()
            state = inspect.getcoroutinestate(request.task.get_coro())  # type: ignore[arg-type]
            if state == inspect.CORO_CREATED:  # it will never see that
                self._unstarted -= 1
                self._end(request)
                self.answers.cancelled(request)
        elif self._thread is not None and self._thread.withdraw(request):
            self._end(request)
            self.answers.cancelled(request)
        else:  # it keeps its slot until it ends, but its caller need not wait for that
            what = f"{self.label}.{request.endpoint} is a plain def and cannot be interrupted: it runs on"
            self.logger.warning("cancelled by its caller, but %s", what)
            self.answers.cancelled(request, what)
            request.flags &= ~WANTS_REPLY
            request.is_abandoned = True

    def credit(self, src: int, call: int, items: int, nbytes: int) -> None:
        """The consumer of a stream allows more (`delivery.Target`)."""
        producer = self.proc.producers.get((src, call))
        if producer is not None:
            producer.allow(items, nbytes)

    def _no_such(self, endpoint: str) -> Error:
        assert self.interface is not None
        is_method = endpoint in self.interface.methods
        return NotAnEndpoint(self.label, endpoint, tuple(self.interface.endpoints), is_method)
