"""What a program says to run a function somewhere: `submit`, `task` (and its `Task.stream`), `map_unordered`."""

import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from monarch_async.errors import BadCall, BadDemand
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.stream import Stream
from monarch_async.tasks.function import function_of
from monarch_async.tasks.future import TaskFuture
from monarch_async.tasks.mapping import MapSource, TaskOutcome
from monarch_async.tasks.options import CheckedOptions, RetryOn, TaskOptions, check_names, read_options
from monarch_async.tasks.pool import active_pool

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Task(Generic[P, R]):
    """A function with options, made by `task`. Calling it is a plain call of the function, here.

    Pickles, with its function.
    """

    def __init__(self, function: Callable[P, Any], options: TaskOptions) -> None:
        """See `task`."""
        check_names(options)
        functools.update_wrapper(self, function)
        self._function, self._given = function, options
        self._options: CheckedOptions | None = None
        if options.get("placement") is None:
            self._options = read_options(options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here."""
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (self._function, self._given)

    def options(self, **options: Unpack[TaskOptions]) -> "Task[P, R]":
        """Return the task with other options; those not given stay as they are. Raises BadDemand."""
        return Task(self._function, cast(TaskOptions, {**self._given, **options}))

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "TaskFuture[R]":
        """Run it where there is room. See `monarch_async.submit`."""
        options = self._options or read_options(self._given)  # which bundle of a placement is chosen each time
        return active_pool().submit(function_of(self._function), options, args, kwargs)

    def stream(
        self: "Task[P, AsyncIterator[T]] | Task[P, AsyncGenerator[T, Any]]", *args: P.args, **kwargs: P.kwargs
    ) -> Stream[T]:
        """Run an async generator function where there is room; iterate over what it yields.

            async for token in ma.task(generate, gpus=1).stream(prompt): ...

        It is sent at once, and runs at most the credit of a stream ahead of who iterates (``stream_items`` and
        ``stream_bytes`` of `Config`). Leaving the loop cancels it. An error is raised at its turn, after the items that
        came before. It is tried again, as `submit` says, only as long as no item has come. With ``as_ref`` each item
        stays where it was made, and a `Ref` to it comes. Raises as `submit` does.
        """
        options = self._options or read_options(self._given)
        if options.returns:
            raise BadDemand("returns= of a task that streams: it yields one value at a time")
        return Stream(active_pool().stream(function_of(self._function, is_stream=True), options, args, kwargs))

    def map_unordered(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        limit: int | None = None,
        errors: Literal["raise", "yield"] = "raise",
    ) -> Stream[Any]:
        """Run it once for each item. See `monarch_async.map_unordered`."""
        function = function_of(self._function)  # as it is now, for all items

        def submit(item: T) -> TaskFuture[Any]:
            return active_pool().submit(function, self._options or read_options(self._given), (item,), {})

        return _mapped(submit, self._options or read_options(self._given), items, limit, errors)

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._given.items())
        return f"<task {getattr(self, '__qualname__', self._function)}{f' ({said})' if said else ''}>"


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[TaskOptions]) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /, **options: Unpack[TaskOptions]) -> Task[P, R]: ...
@overload
def task(**options: Unpack[TaskOptions]) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
    """Return a function as a `Task`: ``task(fn, gpus=1).submit(...)``; also a decorator, with options or without.

    The options are those of `submit`, and cannot be taken for arguments of the function here. Raises BadDemand, and
    BadCall where it is no function.
    """
    if function is None:
        return functools.partial(task, **options)
    if not callable(function):
        raise BadCall("task", f"{function!r} is no function")
    return Task(function, options)


@overload
def submit(
    function: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, **options_and_arguments: Any
) -> "TaskFuture[R]": ...
@overload
def submit(function: Callable[..., R], /, *args: Any, **options_and_arguments: Any) -> "TaskFuture[R]": ...
def submit(
    function: Callable[..., Any],
    /,
    *args: Any,
    cpus: float = 1,
    gpus: float = 0,
    memory: int = 0,
    custom: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    placement: Placement | None = None,
    bundle: int | None = None,
    retries: int = 3,
    retry_on: RetryOn = (),
    poison: int = 3,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    name: str | None = None,
    as_ref: bool = False,
    returns: int | None = None,
    **kwargs: Any,
) -> "TaskFuture[Any]":
    """Run ``function(*args, **kwargs)`` on a worker that has the resources; return the future of its result.

    It is sent at once where a worker is free. Arguments are pickled now; so is a function that has a state, such as a
    partial, a bound method or an object that can be called; others when they are first submitted. A `Ref` among the
    arguments (not inside of them) becomes its value where the task runs; hosts that have most bytes of
    those are preferred. A coroutine function runs on the worker's loop, a plain one on its thread.

    The options are explained by `TaskOptions`. Where the function has arguments of such names, use `task`.

    The future raises what the function raised (a `RemoteError` that is also of the original class), ProcDied or
    HostLost where no retry was left, Poisoned, and Unschedulable where no host could ever fit it. Cancelling it cancels
    a coroutine, and ends the worker of a plain function, which cannot be interrupted; the future is cancelled when that
    is done. A task that is submitted by a task ends before that one does, and is cancelled with it. So does what a task
    has spawned, placed, registered or locked.

    Raises BadDemand, BadCall and PicklingError, at once; Poisoned where the same is in quarantine; Closed.
    """
    options = read_options(
        {
            "cpus": cpus, "gpus": gpus, "memory": memory, "custom": custom, "labels": labels, "hosts": hosts,
            "placement": placement, "bundle": bundle, "retries": retries, "retry_on": retry_on, "poison": poison,
            "env": env, "cwd": cwd, "name": name, "as_ref": as_ref, "returns": returns,
        }
    )  # fmt: skip
    return active_pool().submit(function_of(function), options, args, kwargs)


@overload
def map_unordered(
    function: Callable[[T], Coroutine[Any, Any, R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    limit: int | None = None,
    errors: Literal["raise"] = "raise",
    **options: Unpack[TaskOptions],
) -> Stream[R]: ...
@overload
def map_unordered(
    function: Callable[[T], R],
    items: Iterable[T] | AsyncIterable[T],
    *,
    limit: int | None = None,
    errors: Literal["raise"] = "raise",
    **options: Unpack[TaskOptions],
) -> Stream[R]: ...
@overload
def map_unordered(
    function: Callable[[T], Any],
    items: Iterable[T] | AsyncIterable[T],
    *,
    limit: int | None = None,
    errors: Literal["yield"],
    **options: Unpack[TaskOptions],
) -> Stream[TaskOutcome]: ...
def map_unordered(
    function: Callable[[Any], Any],
    items: Iterable[Any] | AsyncIterable[Any],
    *,
    limit: int | None = None,
    errors: Literal["raise", "yield"] = "raise",
    **options: Unpack[TaskOptions],
) -> Stream[Any]:
    """Run ``function(item)`` for each item, as tasks; iterate over the results as they finish.

        async for result in ma.map_unordered(fetch, urls, limit=100): ...

    Args:
        function: see `submit`.
        items: read as there is room; not ahead of that.
        limit: how many may be running, or finished and not taken out yet; by default twice the workers there are for
            them, which grow as there is room in the cluster.
        errors: ``raise`` the first error of a task, at its turn; or ``yield`` a `TaskOutcome` for each item.
        options: those of `submit`.

    Leaving the loop cancels what still runs. An error of ``items`` itself is raised at its turn. Raises BadDemand,
    BadCall and PicklingError.
    """
    return Task(function, options).map_unordered(items, limit=limit, errors=errors)


def _mapped(
    submit: Callable[[Any], TaskFuture[Any]], options: CheckedOptions, items: Any, limit: int | None, errors: str
) -> Stream[Any]:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadCall("map_unordered", f"limit={limit!r}: expected 1 or more")
    if errors not in ("raise", "yield"):
        raise BadCall("map_unordered", f"errors={errors!r}: expected 'raise' or 'yield'")
    if not isinstance(items, Iterable | AsyncIterable):
        raise BadCall("map_unordered", f"items are a {type(items).__qualname__}, over which nothing can iterate")
    pool = active_pool()
    return Stream(MapSource(submit, items, lambda: limit or pool.room_for(options.shape), errors == "yield"))
