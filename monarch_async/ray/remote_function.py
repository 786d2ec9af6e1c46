"""Remote functions: what ``@ray.remote`` makes of a function."""

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from monarch_async.ray.amounts import of_task
from monarch_async.ray.arity import arity_of
from monarch_async.ray.context import RunningContext
from monarch_async.ray.generator import ObjectRefGenerator
from monarch_async.ray.hub_tasks import NO_TASK, Submission, native_function
from monarch_async.ray.object_ref import ObjectRef, is_ref
from monarch_async.ray.options import TaskOptions, check_task_options
from monarch_async.ray.payload import Payload, kept_arguments, own, pack, pack_arguments
from monarch_async.ray.placement_group import with_strategy_here
from monarch_async.ray.runtime import Runtime, current
from monarch_async.ray.runtime_env import inherited
from monarch_async.ray.task_body import StreamBody, TaskBody


class RemoteFunction:
    """A function that runs as a task: ``function.remote(...)`` returns the reference of its result."""

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        """``given``: the options. Raises ValueError for a coroutine function, as Ray does."""
        if inspect.iscoroutinefunction(function):
            name = getattr(function, "__name__", function)
            raise ValueError(f"{name} is async def, which only actors' methods may be: ma.submit takes such functions")
        self._function, self._given = function, dict(given)
        self._options = check_task_options(given)
        self._arity = arity_of(function, is_bound=True)
        plain = inspect.unwrap(function)
        self._yields = inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)
        self._data: bytes | Payload | None = None
        self._keys: dict[tuple[bool, bool | None], bytes] = {}
        self._known_to: Runtime | None = None
        self._known_at = 0
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        name = self._function.__name__
        raise TypeError(f"{name}() is a remote function: {name}.remote() runs it as a task")

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFunction, (self._function, self._given)

    def options(self, **given: Any) -> "RemoteFunctionWithOptions":
        """Return the function with other options."""
        return RemoteFunctionWithOptions(self, self._options.merged(given))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Run it as a task."""
        return self._submit(self._options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("compiled graphs and workflows (bind) are not offered: await calls in a coroutine")

    def _submit(self, options: TaskOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        runtime = current()
        if self._arity is not None:
            self._arity.check(self._function.__name__, args, kwargs)
        name = options.name or self._function.__name__
        packed, refs = pack_arguments(args, kwargs, is_ref, name)
        count = options.num_returns
        is_stream = count == "streaming" or (count is None and self._yields)
        context = runtime.context
        env = inherited(runtime.outer_env, options.runtime_env)
        options = with_strategy_here(options, of_task(options), name) if _needs_strategy(context, options) else options
        submission = Submission(
            self._key(runtime, is_stream), options, kept_arguments(runtime, packed), name,
            context.namespace or runtime.namespace, env,
            int(context.task_id, 16) if context.lend is not None else NO_TASK,
        )  # fmt: skip
        if is_stream:
            generator = ObjectRefGenerator(runtime, name, options.generator_backpressure)
            runtime.post(stream_task, runtime, generator, submission, refs)
            return generator
        number = 1 if count is None else int(count)
        if runtime.is_driver:
            entries = [runtime.new_entry(name) for _ in range(number)]
            runtime.post(runtime.hub_access.tasks.submit, submission, [ref._entry for ref in refs], entries)  # type: ignore[attr-defined]
            made = [ObjectRef(entry) for entry in entries]
        else:
            numbers = [runtime.take_number() for _ in range(number)]
            runtime.post(runtime.tell_hub, "tasks.submit", submission, refs, numbers)
            made = [runtime.borrowed(each) for each in numbers]
        return made[0] if number == 1 else made or None

    def _key(self, runtime: Runtime, is_stream: bool) -> bytes:
        """Return by what the hub knows the function, having told it where it does not yet."""
        from monarch_async.ray.install import installation

        hub = runtime.hub_address  # another one where a detached actor was adopted
        if self._known_to is not runtime or self._known_at != hub:
            self._keys, self._known_to, self._known_at = {}, runtime, hub
            self._data = None  # pickled anew: globals may be others by now
        installs = installation()
        key = self._keys.get((is_stream, installs))
        if key is not None:
            return key
        if self._data is None:
            self._data = own(pack(self._function, f"function {self._function.__name__}"))
        kind = StreamBody if is_stream else TaskBody
        body = kind(self.__qualname__.replace("<locals>.", ""), self._data, installs)  # type: ignore[attr-defined]
        key = self._keys[(is_stream, installs)] = _digest(self._data, is_stream, installs)
        if runtime.is_driver:
            runtime.post(runtime.hub_access.tasks.learn, key, native_function(body))  # type: ignore[attr-defined]
        else:
            runtime.post(runtime.tell_hub, "tasks.learn", key, body)
        return key


class RemoteFunctionWithOptions:
    """A remote function, with options."""

    __slots__ = ("_function", "_options")

    def __init__(self, function: RemoteFunction, options: TaskOptions) -> None:
        """Made by `RemoteFunction.options`."""
        self._function, self._options = function, options

    def options(self, **given: Any) -> "RemoteFunctionWithOptions":
        """Return it with still other options."""
        return RemoteFunctionWithOptions(self._function, self._options.merged(given))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Run it as a task."""
        return self._function._submit(self._options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        return self._function.bind()


def _needs_strategy(context: RunningContext, options: TaskOptions) -> bool:
    return context.captures or options.scheduling_strategy is not None


def _digest(data: bytes | Payload, *how: object) -> bytes:
    digest = hashlib.blake2b(repr(how).encode(), digest_size=16)
    parts = [data] if isinstance(data, bytes) else [data.skeleton, *data.buffers]
    for part in parts:
        digest.update(part)
    return digest.digest()


def stream_task(runtime: Runtime, generator: ObjectRefGenerator, submission: Submission, refs: Any) -> None:
    """Run a task that streams. On the loop."""
    if runtime.is_driver:
        runtime.hub_access.tasks.stream(generator, submission, [ref._entry for ref in refs])  # type: ignore[attr-defined]
    else:
        runtime.start(generator.follow(StreamOfHub(runtime, submission, refs)))


class StreamOfHub:
    """A stream of the hub's, as another process reads it: the references that come."""

    def __init__(self, runtime: Runtime, submission: Submission, refs: Any) -> None:
        """Begin it. On the loop."""
        self._runtime = runtime
        self._begun: asyncio.Task[int] = runtime.start(runtime.hub("streams.begin", submission, refs))

    def __aiter__(self) -> "StreamOfHub":
        return self

    async def __anext__(self) -> ObjectRef[Any]:
        number = await asyncio.shield(self._begun)  # who stops waiting has something to end all the same
        item = await asyncio.shield(self._runtime.start(self._runtime.hub("streams.next", number)))
        if item is None:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """End it, once it has begun."""
        self._begun.add_done_callback(self._end)

    def _end(self, begun: "asyncio.Task[int]") -> None:
        if not begun.cancelled() and begun.exception() is None:
            self._runtime.tell_hub("streams.end", begun.result())
