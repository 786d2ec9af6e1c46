"""Tasks at the hub: whoever submits them, they are the native pool's of the driver, and share its warm workers."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_async.errors import Unschedulable
from monarch_async.mesh.stream import Stream
from monarch_async.ray.entry import Entry, wait_there
from monarch_async.ray.exceptions import cancelled
from monarch_async.ray.generator import ObjectRefGenerator
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.options import TaskOptions
from monarch_async.ray.payload import Packed, Stored
from monarch_async.ray.runtime_env import restored
from monarch_async.ray.strategies import PlacementGroupSchedulingStrategy
from monarch_async.ray.task_body import TaskBody, TaskHead
from monarch_async.tasks.function import TaskFunction
from monarch_async.tasks.future import TaskFuture
from monarch_async.tasks.options import CheckedOptions, read_options
from monarch_async.tasks.pool import active_pool

if TYPE_CHECKING:
    from monarch_async.ray.hub import Hub

_FOR_EVER = 1 << 30
NO_TASK = -1
_MOST_EVENTS = 100_000
_MOST_CHECKED = 4096


class Submission(NamedTuple):
    """One task, as it is said to the hub."""

    function: bytes  #: the key of what `HubTasks.learn` was told
    options: TaskOptions
    packed: Packed
    name: str
    namespace: str
    runtime_env: Mapping[str, Any] | None
    parent: int  #: the number of the first result of the task that submits it (0: it has none), or `NO_TASK`

    @property
    def is_nested(self) -> bool:
        """Whether a task submits it, which may wait for it."""
        return self.parent != NO_TASK


class _Checked(NamedTuple):
    """What options come to, for all tasks that have the same: not more of a task is kept."""

    options: TaskOptions
    namespace: str
    room: Mapping[str, Any]
    checked: CheckedOptions
    head: bytes

    def is_of(self, submission: Submission, room: Mapping[str, Any]) -> bool:
        """Whether it is that of this task, too."""
        is_same = self.options is submission.options and self.room is room and self.namespace == submission.namespace
        return is_same and not submission.runtime_env


def native_function(body: TaskBody) -> TaskFunction:
    """Return a body as native workers get it."""
    function = TaskFunction(body)
    function.name = body.name
    return function


class HubTasks:
    """See the module."""

    def __init__(self, hub: "Hub") -> None:
        """None yet."""
        self._hub, self._runtime = hub, hub.runtime
        self._numbers = itertools.count(1)
        self._functions: dict[bytes, TaskFunction] = {}
        self._options: dict[bytes, TaskOptions] = {}  # by function: those that others said last
        self._checked: dict[int, _Checked] = {}
        self.children: dict[int, set[_Run]] = {}  #: what tasks have submitted and has not ended, by `Submission.parent`
        self._streams: dict[int, tuple[int, ObjectRefGenerator]] = {}  # with the process that reads it
        self.events: deque[tuple[str, float, float]] = deque(maxlen=_MOST_EVENTS)  #: name, submitted, ended
        hub.operations["tasks.learn"] = self._learn
        hub.operations["tasks.submit"] = self._take
        hub.operations["tasks.events"] = lambda src: [_as_trace(*event) for event in self.events]
        hub.operations["objects.put"] = self._put
        hub.operations["streams.begin"], hub.operations["streams.next"] = self._begin_stream, self._next_of_stream
        hub.operations["streams.end"] = self._end_stream

    def learn(self, key: bytes, function: TaskFunction) -> None:
        """Know a function."""
        self._functions.setdefault(key, function)

    def _learn(self, src: int, key: bytes, body: TaskBody) -> None:
        if key not in self._functions:
            self._functions[key] = native_function(body)

    def _take(self, src: int, submission: Submission, slots: Sequence[Any], numbers: Sequence[int]) -> None:
        """Another process has submitted a task; it has its results' references already."""
        borrowing = self._runtime.borrowing
        entries = [borrowing.claim(number, submission.name, src) for number in numbers]
        known = self._options.setdefault(submission.function, submission.options)
        if known == submission.options:  # they came as a copy: what is known of them is known by what they are
            submission = submission._replace(options=known)
        else:
            self._options[submission.function] = submission.options
        self.submit(submission, [ref._entry for ref in slots], entries)

    def _put(self, src: int, number: int, packed: Packed) -> None:
        """A task has put an object: it is owned here, as that process may end soon."""
        self._runtime.borrowing.claim(number, "ray.put", src).complete(packed)

    # -- streams ---------------------------------------------------------------------------------------------------

    def stream(self, generator: ObjectRefGenerator, submission: Submission, slots: Sequence[Entry]) -> None:
        """Run a task that streams, for this process."""
        task = self._runtime.start(self._stream(generator, submission, slots))

        def withdraw() -> None:
            task.cancel()
            generator.end(cancelled(submission.name))

        generator.withdraw = withdraw

    async def _stream(self, generator: ObjectRefGenerator, submission: Submission, slots: Sequence[Entry]) -> None:
        try:
            for entry in slots:
                await wait_there(entry)
            room = await self._hub.placing.room_for_task(submission.options)
            run = _Run(self, submission, slots, ())
            checked = run.check(room)
            function, args = run.call(run.head(checked), 1)
            source = Stream(active_pool().stream(function, checked, args, {}, goes_first=submission.is_nested))
        except Exception as error:
            generator.end(error)
            return
        await generator.follow(source)

    def _begin_stream(self, src: int, submission: Submission, slots: Sequence[Any]) -> int:
        number = next(self._numbers)
        most = submission.options.generator_backpressure
        generator = ObjectRefGenerator(self._runtime, submission.name, most)
        self._streams[number] = src, generator
        self.stream(generator, submission, [ref._entry for ref in slots])
        return number

    async def _next_of_stream(self, src: int, number: int) -> Any:
        _, generator = self._streams[number]
        try:
            return await anext(generator)
        except StopAsyncIteration:
            self._streams.pop(number, None)
            return None

    def _end_stream(self, src: int, number: int) -> None:
        _, generator = self._streams.pop(number, (src, None))
        if generator is not None:
            generator.cancel(False)

    def forget(self, has_ended: Callable[[int], bool]) -> None:
        """Processes have ended: so do the streams that they read."""
        for number, (reader, _) in list(self._streams.items()):
            if has_ended(reader):
                self._end_stream(reader, number)

    # -- tasks that return -----------------------------------------------------------------------------------------

    def submit(self, submission: Submission, slots: Sequence[Entry], entries: Sequence[Entry]) -> None:
        """Run a task once its arguments are there. ``entries`` are its results; it runs where there are none, too."""
        pending = [entry for entry in slots if not entry.is_done]
        run = _Run(self, submission, slots, entries)
        for entry in entries:
            entry.cancel = run.cancel
        if submission.parent > 0:
            self.children.setdefault(submission.parent, set()).add(run)
        if pending:
            run.wait(pending)
        else:
            run.go()


def _as_trace(name: str, begun: float, ended: float) -> dict[str, Any]:
    """Return an event of Chrome's trace format; it takes microseconds."""
    times = {"ts": begun * 1e6, "dur": (ended - begun) * 1e6}
    return {"name": name, "cat": "task", "ph": "X", "pid": "tasks", "tid": 0, **times, "args": {}}


class _Run:
    """One task that was submitted."""

    __slots__ = ("_entries", "_future", "_is_cancelled", "_left", "_slots", "_started", "_submission", "_tasks")

    def __init__(
        self, tasks: HubTasks, submission: Submission, slots: Sequence[Entry], entries: Sequence[Entry]
    ) -> None:
        self._tasks, self._submission, self._slots, self._entries = tasks, submission, slots, entries
        self._future: TaskFuture[Any] | None = None
        self._is_cancelled = False

    def wait(self, pending: Sequence[Entry]) -> None:
        """Arguments are not there yet."""
        self._left = len(pending)
        for entry in pending:
            if not entry.when_done(self._argument_done):
                self._argument_done()

    def _argument_done(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.go()

    def go(self) -> None:
        """Its arguments are there."""
        if self._is_cancelled:
            return
        failed = next((entry for entry in self._slots if entry.error is not None), None)
        if failed is not None:
            self._fail(self._tasks._runtime.error_of(failed))
            return
        tasks, options = self._tasks, self._submission.options
        room = tasks._hub.placing.room_now(options)
        if room is None:
            tasks._runtime.start(self._find_room())
            return
        known = tasks._checked.get(id(options))
        if known is None or not known.is_of(self._submission, room):
            try:
                checked = self.check(room)
                known = _Checked(options, self._submission.namespace, room, checked, self.head(checked))
            except Exception as error:
                self._fail(error)
                return
            if not self._submission.runtime_env:
                if len(tasks._checked) >= _MOST_CHECKED:
                    tasks._checked.clear()
                tasks._checked[id(options)] = known
        self._start(known.checked, known.head)

    async def _find_room(self, is_again: bool = False) -> None:
        placing, submission = self._tasks._hub.placing, self._submission
        try:
            if is_again:
                await placing.wait_news()
            room = await placing.room_for_task(submission.options, submission.name)
            if not self._is_cancelled:
                checked = self.check(room)
                self._start(checked, self.head(checked))
        except Exception as error:
            self._fail(error)

    def check(self, room: Mapping[str, Any]) -> CheckedOptions:
        """Return the options of the native task."""
        submission, options = self._submission, self._submission.options
        given: dict[str, Any] = dict(room)
        if submission.runtime_env:
            runtime_env = restored(submission.runtime_env)
            given["env"] = {**given.get("env", {}), **runtime_env.env}
            given["cwd"] = runtime_env.cwd
        retries = 3 if options.max_retries is None else options.max_retries
        given["retries"] = _FOR_EVER if retries < 0 else retries
        retry = options.retry_exceptions
        given["retry_on"] = (Exception,) if retry is True else tuple(retry or ())
        return read_options({**given, "poison": _FOR_EVER, "name": submission.name})  # type: ignore[typeddict-item]

    def _start(self, checked: CheckedOptions, head: bytes) -> None:
        self._started = time.time()
        try:
            function, args = self.call(head, len(self._entries))
            self._future = active_pool().submit(function, checked, args, {}, goes_first=self._submission.is_nested)
        except Exception as error:
            self._fail(error)
            return
        self._future.add_done_callback(self._done)

    def call(self, head: bytes, count: int) -> tuple[TaskFunction, tuple[Any, ...]]:
        """Return the native task: its function and arguments."""
        values: list[Packed | int | tuple[int, list[ObjectRef[Any]]]] = []
        stored: list[Any] = []
        for entry in self._slots:
            value = entry.value
            if isinstance(value, Stored):  # what is inside of it goes beside it, as that comes by itself
                values.append((len(stored), list(value.refs)) if value.refs else len(stored))
                stored.append(value.ref)
            else:
                assert value is not None
                values.append(value)
        number = self._entries[0].number if self._entries else 0
        function = self._tasks._functions[self._submission.function]
        return function, ((head, number, count), self._submission.packed, values, *stored)

    def head(self, checked: CheckedOptions) -> bytes:
        """Return what goes with every call of these options."""
        submission, options = self._submission, self._submission.options
        strategy = options.scheduling_strategy
        group, captures = "", False
        if isinstance(strategy, PlacementGroupSchedulingStrategy) and strategy.placement_group is not None:
            group, captures = strategy.placement_group.id.hex(), bool(strategy.captures_children)
        shape = checked.shape
        resources = {name: amount for name, amount in (("CPU", shape.cpus), ("GPU", shape.gpus)) if amount}
        resources.update(shape.custom)
        env = dict(submission.runtime_env) if submission.runtime_env else None
        return TaskHead(submission.name, resources, submission.namespace, group, captures, env).pack()

    def cancel(self, by_force: bool, is_recursive: bool) -> None:
        """Nobody wants it any more; nor, where that is said, what it has submitted."""
        self._is_cancelled = True
        submitted = self._tasks.children.get(self._entries[0].number, ()) if is_recursive and self._entries else ()
        if self._future is not None:
            self._future.cancel()
        else:
            self._fail(cancelled(self._submission.name))
        for child in list(submitted):  # after it: so it does not see them fail
            child.cancel(by_force, is_recursive)

    def _end(self) -> None:
        siblings = self._tasks.children.get(self._submission.parent)
        if siblings is not None:
            siblings.discard(self)
            if not siblings:
                del self._tasks.children[self._submission.parent]

    def _done(self, future: TaskFuture[Any]) -> None:
        self._tasks.events.append((self._submission.name, self._started, time.time()))
        if future.cancelled():
            self._fail(cancelled(self._submission.name))
        elif (error := future.exception()) is not None:
            error = self._tasks._hub.placing.error_of(self._submission.options, error)
            if isinstance(error, Unschedulable):  # where it was to run is gone
                self._tasks._runtime.start(self._find_room(is_again=True))
            else:
                self._fail(error)
        elif len(self._entries) == 1:
            self._end()
            self._entries[0].arrive(future.result())
        else:
            self._end()
            for entry, value in zip(self._entries, future.result(), strict=True):
                entry.arrive(value)

    def _fail(self, error: BaseException) -> None:
        self._end()
        for entry in self._entries:
            if not entry.is_done:
                entry.fail(error)
