"""The pool: the tasks and warm workers of one process. A shell around the `queue`.

Whoever submits leases workers of its own, through the client's scheduler, and then talks to them directly: the client
is on no task's path but its own.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any, assert_never

from monarch_async.errors import ActorDied, Closed, Lost, PicklingError, Poisoned, ProcDied
from monarch_async.ids import host_of
from monarch_async.mesh.domain import Domain, active_domain
from monarch_async.mesh.ref import Ref
from monarch_async.runtime.call import load_outcome
from monarch_async.runtime.context import current_context
from monarch_async.tasks.children import Children, children
from monarch_async.tasks.events import (
    Ask,
    Cancelled,
    Command,
    Died,
    Drop,
    End,
    Event,
    Fail,
    Finished,
    Interrupt,
    Overdue,
    Poison,
    Raised,
    Run,
    Seen,
    Start,
    Stopped,
    Submitted,
    Tick,
)
from monarch_async.tasks.flight import Flight
from monarch_async.tasks.function import TaskFunction, copied
from monarch_async.tasks.future import ChildFuture, TaskFuture
from monarch_async.tasks.items import StreamFlight, TaskItems
from monarch_async.tasks.line import RAMP
from monarch_async.tasks.options import CheckedOptions
from monarch_async.tasks.quarantine import Quarantine, key_of, shown
from monarch_async.tasks.queue import TaskQueue
from monarch_async.tasks.runner import AS_REF, RESOLVE
from monarch_async.tasks.sent_task import SentTask
from monarch_async.tasks.shape import Shape
from monarch_async.tasks.warm_worker import WarmWorker
from monarch_async.wire.frame import CANCEL, CANCELLED, FAILED, STREAMED, WANTS_REPLY, pack_frame
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.payload import Buffer, Encoded, Ticketed, dumps_call, loads

#: Who was heard so long ago lives. A death that happened before a task was sent is known after so long at the latest.
_JUST_NOW, _LATE_NEWS = 0.002, 1.0

#: Arguments of fewer bytes are not worth a detour.
_HOMING = 1 << 20

_PLAIN, _COROUTINE = CallFields("run"), CallFields("run_coroutine")
_PLAIN_CONTROL, _COROUTINE_CONTROL = pack_call_fields(_PLAIN), pack_call_fields(_COROUTINE)


class TaskPool:
    """See the module. A `mesh.domain.Annex`."""

    def __init__(self, domain: Domain) -> None:
        """No workers before the first task."""
        self.domain, self.router = domain, domain.router
        self.queue = TaskQueue(domain.router.config.task_idle)
        self.quarantine = Quarantine()
        self.name = f"tasks of {domain.router.name}"
        self.depth = 0  #: how deep in tasks this process is: deeper ones go first, so that those around them can end
        self.sent: dict[int, SentTask] = {}
        self._workers: dict[int, WarmWorker] = {}
        self._of_actors: dict[int, Children] = {}
        self._numbers = itertools.count(1)
        self._ticking: asyncio.TimerHandle | None = None
        self._is_closed = False

    # -- in --------------------------------------------------------------------------------------------------------

    def submit(
        self,
        function: TaskFunction,
        options: CheckedOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        goes_first: bool = False,
    ) -> TaskFuture[Any]:
        """Take a task. ``goes_first``: others wait for it. Raises PicklingError, Poisoned, Closed."""
        return self._accept(function, options, args, kwargs, goes_first).future

    def stream(
        self,
        function: TaskFunction,
        options: CheckedOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        goes_first: bool = False,
    ) -> TaskItems[Any]:
        """Take a task that is an async generator. ``goes_first`` and what is raised are as of `submit`."""
        items = self._accept(function, options, args, kwargs, goes_first).items
        assert items is not None
        return items

    def _accept(
        self,
        function: TaskFunction,
        options: CheckedOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        goes_first: bool = False,
    ) -> SentTask:
        if self._is_closed:
            raise Closed(f"task {function.name}", "its program has left its hosts")
        if kwargs:
            function.check(kwargs)
        home, encoded = self._encode(function, options, args, kwargs)
        if self.quarantine and (known := self.quarantine.find(function.id, encoded)) is not None:
            raise Poisoned(known.task, known.deaths, known.arguments)
        number = next(self._numbers)
        mine = children.get()
        if mine is None or mine.is_over:
            mine = self._children_of_actor()
        what = f"task {options.name or function.name}"
        if mine is None:
            future: TaskFuture[Any] = TaskFuture(self, what, number)
        else:
            self.depth = mine.depth  # one task runs here at a time
            future = ChildFuture(self, what, number, mine)
        task = self.sent[number] = SentTask(number, function, options, encoded, future)
        if function.is_stream:
            task.items = TaskItems(self.router, what)
            task.items.follow(future)
        is_interruptible = function.is_coroutine or function.is_stream
        shape, retries, poison = options.shape, options.retries, options.poison
        self.feed(Submitted(number, shape, retries, poison, home, is_interruptible, goes_first))
        return task

    def _encode(
        self, function: TaskFunction, options: CheckedOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, Encoded]:
        """Return the host that has most of the arguments, and the call."""
        refs = [value for value in (*args, *kwargs.values()) if type(value) is Ref]
        mode = (RESOLVE if refs else 0) | (AS_REF if options.as_ref else 0)
        call = (function.id, mode, options.returns, args, kwargs)
        try:
            encoded = dumps_call(call, {}, function.name)
        except PicklingError:
            dumps_call(args, kwargs, f"task {function.name}")  # says which of them it is
            raise
        return _home_of(refs) if refs else 0, copied(encoded) if encoded.buffers else encoded

    def _children_of_actor(self) -> Children | None:
        context = current_context()
        if context is None:
            return None
        instance = context.instance
        found = self._of_actors.get(id(instance))
        if found is None:
            found = self._of_actors[id(instance)] = Children(instance, forget=self._forget_children)
            self.domain.belongings.add(found)
        return found

    def _forget_children(self, ended: Children) -> None:
        self._of_actors.pop(id(ended.owner), None)
        self.domain.belongings.discard(ended)

    def cancel(self, future: TaskFuture[Any]) -> None:
        """Nobody wants this task any more."""
        if self._is_closed:
            return
        self.feed(Cancelled(future.number))
        if not future.done():
            self.router.loop.call_later(self.router.config.cancel_grace, self._overdue, future)

    def _overdue(self, future: TaskFuture[Any]) -> None:
        if not future.done() and not self._is_closed:
            self.feed(Overdue(future.number))
            self.router.loop.call_later(self.router.config.cancel_grace, self._overdue, future)

    # -- the queue -------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Tell the queue, and do what it wants."""
        if self._is_closed:
            return
        for command in self.queue.handle(event, self.router.loop.time()):
            self._perform(command)
        due = self.queue.next_tick()
        ticking = self._ticking
        if due is not None and (ticking is None or due < ticking.when()):
            if ticking is not None:
                ticking.cancel()
            self._ticking = self.router.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        self.feed(Tick())

    def _perform(self, command: Command) -> None:
        match command:
            case Run(task, worker):
                self._run(self.sent[task], self._workers[worker])
            case Ask(worker, shape, home):
                self._workers[worker] = WarmWorker(self, worker, shape, self._name_of(home))
            case Start(worker):
                self._workers[worker].start()
            case End(worker, at_once):
                self._workers[worker].end(at_once)
            case Interrupt(task, worker):
                self._interrupt(self._workers[worker])
            case Fail(task, error):
                self._fail(self.sent.pop(task), error)
            case Poison(task, deaths):
                self._poison(self.sent.pop(task), deaths)
            case Drop(task):
                dropped = self.sent.pop(task)
                dropped.future.give_up()
                dropped.future.ended()
            case _:
                assert_never(command)

    def _name_of(self, host: int) -> str:
        return self.domain.name_of(host << 32) if host else ""

    def _run(self, task: SentTask, worker: WarmWorker) -> None:
        """Send a task. One that has lost a worker goes to one that certainly lives: so it is known what ends them."""
        if task.tries and self.router.loop.time() - worker.heard_at > _JUST_NOW:
            worker.probe(lambda: self._send(task, worker))
        else:
            self._send(task, worker)

    def _send(self, task: SentTask, worker: WarmWorker) -> None:
        path, encoded = worker.path, task.encoded
        assert path is not None
        if task.future.is_cancelling:
            self.feed(Stopped(task.number))
            return
        task.tries += 1
        now = self.router.loop.time()
        items, flags, fly = task.items, WANTS_REPLY, Flight
        if items is not None:
            fields, flags, fly = items.fields, WANTS_REPLY | STREAMED, StreamFlight
            control = pack_call_fields(fields)
        elif task.function.is_coroutine:
            fields, control = _COROUTINE, _COROUTINE_CONTROL
        else:
            fields, control = _PLAIN, _PLAIN_CONTROL
        router = self.router
        try:
            worker.teach(task.function)
            is_sure = now - worker.heard_at <= _JUST_NOW
            flight = worker.flight = fly(self, task, worker, path, now, is_sure)
            flight.id = router.register(flight)
            if items is not None:
                items.begin(path, flight.id)
            flight.nbytes = router.post(path, flags, fields, control, encoded, flight.id)
        except Exception as error:  # there is no memory to send it from, say
            self.feed(Raised(task.number, error))
            return
        if type(encoded) is Ticketed:
            encoded.sent_to((path.dst,), flight.id)

    def _interrupt(self, worker: WarmWorker) -> None:
        path, flight = worker.path, worker.flight
        if path is None or flight is None:  # it is about to be sent, or not, then
            return
        path.connection.send(pack_frame(CANCEL, 0, path.dst, self.router.address, path.actor, flight.id))

    def room_for(self, shape: Shape) -> int:
        """Return how many tasks of a shape keep its workers busy, and ask for more where there is room."""
        return max(RAMP, 2 * self.queue.count_workers(shape))

    # -- out -------------------------------------------------------------------------------------------------------

    def has_come(self, flight: StreamFlight) -> bool:
        """An item has; return whether it is of a try that counts (I1)."""
        task = flight.task
        if self.sent.get(task.number) is not task or flight.worker.flight is not flight:
            return False
        assert task.items is not None
        if not task.items.has_come:
            task.items.has_come = True
            self.feed(Seen(task.number))
        return True

    def take_answer(self, flight: Flight, flags: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> None:
        """A runner has answered."""
        task = flight.task
        if self.sent.get(task.number) is not task or flight.worker.flight is not flight:
            return
        flight.worker.flight = None
        flight.worker.heard_at = self.router.loop.time()
        future = task.future
        if flags & FAILED:
            _, error = load_outcome(flags, skeleton, buffers, future.what)
            assert error is not None
            if type(error) is ActorDied:  # the runner itself, which raises no such thing
                self.worker_died(flight.worker, error)
            elif future.is_cancelling:
                self.feed(Stopped(task.number))
            else:
                error = task.named(error)
                self.feed(Raised(task.number, error, isinstance(error, task.options.retry_on)))
        elif flags & CANCELLED or future.is_cancelling:
            self.feed(Stopped(task.number))
        else:
            try:
                value = loads(skeleton, buffers)
            except Exception as error:
                error.add_note(f"raised while unpickling the result of {future.what}")
                self.feed(Raised(task.number, error))
                return
            del self.sent[task.number]
            future.set_result(value)
            future.ended()
            self.feed(Finished(task.number))

    def _fail(self, task: SentTask, error: Exception) -> None:
        if isinstance(error, Lost) and task.tries > 1:
            error.add_note(f"task {task.name} had begun {task.tries} times, each time on another worker")
        if not task.future.done():
            task.future.fail(error)
        task.future.ended()

    def _poison(self, task: SentTask, deaths: Sequence[Exception]) -> None:
        key, arguments = key_of(task.function.id, task.encoded), shown(task.encoded)
        self.quarantine.add(key, task.name, arguments, deaths, time.time())
        error = Poisoned(task.name, deaths, arguments)
        error.__cause__ = deaths[-1]
        self._fail(task, error)

    # -- workers ---------------------------------------------------------------------------------------------------

    def worker_died(self, worker: WarmWorker, error: Exception) -> None:
        """A worker is gone, or of no use any more. Told more than once."""
        if worker.is_dead:
            return
        worker.is_dead = True
        self.feed(Died(worker.id, error, self._is_blamed(worker.flight, error), worker.flight is not None))
        worker.end(at_once=False)

    def _is_blamed(self, flight: Flight | None, error: Exception) -> bool:
        """Whether a task may have caused a death: it was running, and nobody else did."""
        if flight is None or not isinstance(error, ActorDied | ProcDied):
            return False
        if isinstance(error, ProcDied) and error.killed_by:
            return False
        return flight.is_sure or self.router.loop.time() - flight.sent_at > _LATE_NEWS

    def forget(self, worker: WarmWorker) -> None:
        """A worker has ended, and has given back what it held."""
        self._workers.pop(worker.id, None)

    async def aclose(self) -> None:
        """End all workers; what has not ended fails. Waits for that."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._ticking is not None:
            self._ticking.cancel()
        for task in list(self.sent.values()):
            if not task.future.done():
                task.future.set_exception(Closed(task.future.what, "its program has left its hosts"))
                task.future.exception()
            task.future.ended()
        self.sent.clear()
        lives = [worker.close() for worker in self._workers.values()]
        if lives:  # where an agent does not answer, its procs end when we have left
            await asyncio.wait(lives, timeout=2 * self.router.config.stop_grace)


def _home_of(refs: Sequence[Ref[Any]]) -> int:
    """Return the host that has most bytes of these objects; 0 where that is not worth a detour."""
    by_host: dict[int, int] = {}
    for ref in refs:
        host = host_of(ref.home)
        by_host[host] = by_host.get(host, 0) + ref.nbytes
    host = max(by_host, key=lambda host: by_host[host])
    return host if by_host[host] >= _HOMING else 0


def active_pool() -> TaskPool:
    """Return the pool of this process, made when it is first wanted. Raises Closed, and BadCall on other threads."""
    domain = active_domain()
    found = domain.annexes.get(TaskPool)
    if found is None:
        found = domain.annexes[TaskPool] = TaskPool(domain)
    assert isinstance(found, TaskPool)
    return found
