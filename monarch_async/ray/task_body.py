"""What a remote function is in a worker: the user's function, and around it unpickling arguments, pickling results."""

import asyncio
import functools
import pickle
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, NamedTuple

import cloudpickle

from monarch_async.ray.compute_threads import limit_here
from monarch_async.ray.context import RunningContext, running
from monarch_async.ray.departure import end_process
from monarch_async.ray.devices import leave_alone
from monarch_async.ray.entry import value_of, value_of_on_loop
from monarch_async.ray.payload import LARGE, Packed, Payload, fill, nbytes_of, own, pack, store, unpack
from monarch_async.ray.runtime_env import restored
from monarch_async.ray.task_error import RayTaskError
from monarch_async.tasks.children import children

_END = object()


class TaskHead(NamedTuple):
    """What goes with every call of the same options: plain values."""

    name: str
    resources: dict[str, float]
    namespace: str
    group: str  #: the placement group's id
    captures: bool
    runtime_env: dict[str, Any] | None = None  #: paths and a hook to be applied here; variables are set already

    def pack(self) -> bytes:
        """Return it as bytes: packed once for many calls, and unpacked once."""
        return cloudpickle.dumps(tuple(self))


@functools.lru_cache(maxsize=256)
def _head_of(data: bytes) -> TaskHead:
    return TaskHead(*pickle.loads(data))


#: With every call: the head, the number of the first result, how many there are.
Said = tuple[bytes, int, int]


def load_function(data: bytes | Payload, installs: bool | None) -> Any:
    """Return what was pickled; ``installs``: the `installation` of who pickled it."""
    if installs is not None:
        from monarch_async.ray.install import install

        install(installs)
    return unpack(data)


class TaskBody:
    """A function that returns. Called on the runner's thread."""

    __slots__ = ("_data", "_function", "_installs", "name")

    def __init__(self, name: str, data: bytes | Payload, installs: bool | None) -> None:
        """``data``: the function, pickled; ``installs``: see `load_function`. It is unpickled where it is called."""
        self.name, self._data, self._installs = name, data, installs
        self._function: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self._data, self._installs)

    def _load(self) -> Any:
        if self._function is None:
            self._function = load_function(self._data, self._installs)
        return self._function

    def __call__(self, said: Said, packed: Packed, values: Sequence[Any], *stored: object) -> Any:
        from monarch_async.ray.runtime import current

        runtime = current()
        head, (_, number, count) = _head_of(said[0]), said
        with _entered(head, number, runtime):
            function = self._load()  # first: arguments may be of modules that import ray
            args, kwargs = fill(value_of(packed, runtime), [_value_of(value, stored) for value in values])
            result = function(*args, **kwargs)
            del args, kwargs
            if count == 1:
                return kept(result, runtime)
            return [kept(value, runtime) for value in split(result, count, head.name)]


class StreamBody(TaskBody):
    """A function that yields: a generator, which runs on a thread of its own, or an async generator."""

    __slots__ = ()

    async def __call__(  # type: ignore[override]
        self, said: Said, packed: Packed, values: Sequence[Any], *stored: object
    ) -> AsyncIterator[Packed]:
        from monarch_async.ray.runtime import current

        runtime = current()
        head = _head_of(said[0])
        with _entered(head, said[1], runtime):
            function = self._load()
            args, kwargs = fill(await value_of_on_loop(packed), [_value_of(value, stored) for value in values])
            made = function(*args, **kwargs)
            async for item in iterate(made, head.name):
                yield await kept_on_loop(item, runtime)


async def iterate(made: Any, name: str) -> AsyncIterator[object]:
    """Iterate over what a generator function has made; a plain one's code runs on a thread of its own."""
    if hasattr(made, "__aiter__"):
        async for item in made:
            yield item
        return
    if not hasattr(made, "__iter__"):
        raise TypeError(f"{name} was to stream and returned a {type(made).__name__}, over which nothing can iterate")
    iterator = iter(made)
    context = copy_context()
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        while (item := await loop.run_in_executor(thread, lambda: context.run(next, iterator, _END))) is not _END:
            yield item
    finally:
        try:
            if hasattr(iterator, "close"):
                await loop.run_in_executor(thread, lambda: context.run(iterator.close))
        finally:
            thread.shutdown(wait=False)  # where this is cancelled, too, its code may still be at it


@contextmanager
def _entered(head: TaskHead, number: int, runtime: Any) -> Iterator[None]:
    mine = children.get()
    leave_alone()
    apply_runtime_env(head.runtime_env)
    limit_here(head.resources)

    def lend(is_waiting: bool) -> None:
        if mine is not None:
            runtime.post(mine.lend, is_waiting)

    token = running.set(
        RunningContext(
            task_name=head.name, task_id=f"{number:032x}", assigned_resources=head.resources, namespace=head.namespace,
            placement_group=head.group, captures=head.captures, runtime_env=head.runtime_env, lend=lend,
        )
    )  # fmt: skip
    try:
        yield
    except SystemExit as exit:
        end_process(exit)
    except Exception as error:
        raise RayTaskError.to_raise(error, head.name) from None
    finally:
        running.reset(token)


_applied: set[str] = set()


def apply_runtime_env(given: Mapping[str, Any] | None) -> None:
    """Do what a runtime environment wants of a process before any code of the user's, once."""
    if not given:
        return
    runtime_env = restored(given)
    for path in reversed(runtime_env.paths):
        if path not in _applied:
            _applied.add(path)
            sys.path.insert(0, path)
    hook = given.get("worker_process_setup_hook")
    if hook is not None and "hook" not in _applied:
        _applied.add("hook")
        runtime_env.run_setup_hook()


def _value_of(value: Any, stored: Sequence[object]) -> object:
    if type(value) is tuple:  # with what keeps the references inside of it
        return stored[value[0]]
    return stored[value] if type(value) is int else unpack(value)


def split(result: object, count: int, name: str) -> Sequence[object]:
    """Return the results of a call that has ``count``. Raises ValueError where it has not."""
    if count == 0:
        return ()
    try:
        values = list(result)  # type: ignore[call-overload]
    except TypeError:
        raise ValueError(f"{name}: num_returns={count}, and it returned a {type(result).__name__}") from None
    if len(values) != count:
        raise ValueError(f"{name}: num_returns={count}, and it returned {len(values)} values")
    return values


def kept(value: object, runtime: Any) -> Packed:
    """Pickle a result, on any thread but the loop's; a large one is put into shared memory."""
    packed = pack(value, "result")
    return runtime.run(store(packed, runtime.domain)) if nbytes_of(packed) >= LARGE else packed


async def kept_on_loop(value: object, runtime: Any) -> Packed:
    """The same, on the loop."""
    packed = own(pack(value, "result"))
    return await store(packed, runtime.domain) if nbytes_of(packed) >= LARGE else packed
