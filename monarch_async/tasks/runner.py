"""The actor in every worker: it knows the functions it was taught, and runs one task at a time.

A plain function runs on the actor's thread, a coroutine function or async generator on the loop. References to shared
objects among its arguments are replaced by their values, pulled by the store of this host; those inside of other
arguments are not.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from monarch_async.errors import BadCall
from monarch_async.mesh.domain import find_domain
from monarch_async.mesh.ref import Ref, put
from monarch_async.runtime.actor import Actor, endpoint
from monarch_async.tasks.children import Children
from monarch_async.tasks.task_scope import TaskScope
from monarch_async.wire.payload import loads

T = TypeVar("T")

#: How a task is to run: arguments have references to be resolved; the result stays in the store of this host.
RESOLVE, AS_REF = 1, 2

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class TaskRunner(Actor):
    """Made by a pool, one per worker."""

    def __init__(self, placement: int, depth: int) -> None:
        """``placement``: what this worker holds, which it lends while its task waits for others.

        ``depth``: of the tasks it runs; 1 where no task has submitted them.
        """
        domain = find_domain()
        assert domain is not None
        self._domain, self._loop, self._placer = domain, domain.router.loop, domain.placer
        self._placement, self._depth = placement, depth
        self._taught: dict[bytes, tuple[bytes, Sequence[bytes]]] = {}
        self._functions: dict[bytes, Callable[..., Any]] = {}
        self._names: dict[bytes, str] = {}
        self._running = b""

    @endpoint
    async def learn(self, id: bytes, name: str, skeleton: bytes, buffers: list[bytes], old: list[bytes]) -> None:
        """Take a function, and forget ``old`` ones.

        It is unpickled for the first task, whose failure it is where that cannot be done.
        """
        for known in old:
            for by_id in (self._names, self._taught, self._functions):
                by_id.pop(known, None)  # type: ignore[attr-defined]
        self._names[id], self._taught[id] = name, (skeleton, buffers)

    @endpoint
    async def ping(self) -> None:
        """Give a sign of life."""

    @endpoint
    def run(self, id: bytes, mode: int, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run a plain function."""
        scope = self._enter()
        try:
            function = self._function(id)
            if mode & RESOLVE:
                args, kwargs = self._wait(_resolve(args, kwargs))
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = self._wait(_awaited(value))
            if scope:
                self._wait(scope.finish())
            return self._wait(_kept(value, count)) if mode & AS_REF else _counted(value, count)
        except BaseException:
            if scope:
                self._wait(scope.abandon())
            raise
        finally:
            scope.leave()

    @endpoint
    async def run_coroutine(
        self, id: bytes, mode: int, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run a coroutine function."""
        scope = self._enter()
        try:
            function = self._function(id)
            if mode & RESOLVE:
                args, kwargs = await _resolve(args, kwargs)
            value = await function(*args, **kwargs)
            if scope:
                await scope.finish()
            return await _kept(value, count) if mode & AS_REF else _counted(value, count)
        except BaseException:
            if scope:
                await scope.abandon()
            raise
        finally:
            scope.leave()

    @endpoint
    async def run_stream(
        self, id: bytes, mode: int, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[object]:
        """Run an async generator function; yield what it yields."""
        scope = self._enter()
        try:
            function = self._function(id)
            if mode & RESOLVE:
                args, kwargs = await _resolve(args, kwargs)
            async with aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield await _kept(item, count) if mode & AS_REF else item
            if scope:
                await scope.finish()
        except BaseException:
            if scope:
                await scope.abandon()
            raise
        finally:
            scope.leave()

    def _enter(self) -> TaskScope:
        scope = TaskScope(
            self._domain, functools.partial(self.__describe_call__, "?"), Children(self, self._depth, self._lend)
        )
        scope.enter()
        return scope

    def __describe_call__(self, endpoint: str) -> str:
        """Return what runs, for tables and errors."""
        return f"task {self._names.get(self._running, endpoint)}"

    def _function(self, id: bytes) -> Callable[..., Any]:
        self._running = id
        found = self._functions.get(id)
        if found is None:
            found = self._functions[id] = loads(*self._taught[id])  # type: ignore[assignment]
            del self._taught[id]
        return found  # type: ignore[return-value]

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, from the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _lend(self, is_waiting: bool) -> None:
        if is_waiting:
            self._placer.lend(self._placement)
        else:
            self._placer.reclaim(self._placement)


async def _awaited(value: Any) -> Any:
    return await value


async def _resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Return arguments with the values of references in their place."""
    places = [*enumerate(args), *kwargs.items()]
    wanted = [(place, value) for place, value in places if isinstance(value, Ref)]
    values = await asyncio.gather(*[_awaited(ref) for _, ref in wanted])
    found = {place: value for (place, _), value in zip(wanted, values, strict=True)}
    resolved = tuple([found.get(index, value) for index, value in enumerate(args)])
    return resolved, {name: found.get(name, value) for name, value in kwargs.items()}


def _counted(value: object, count: int) -> object:
    """Return the result, which consists of ``count`` values where that is not 0. Raises BadCall where it does not."""
    if not count:
        return value
    if not isinstance(value, tuple | list) or len(value) != count:
        what = f"{len(value)} values" if isinstance(value, tuple | list) else f"a {type(value).__qualname__}"
        raise BadCall("task", f"it returned {what}, where returns={count} was said")
    return tuple(value)


async def _kept(value: object, count: int) -> object:
    """Return references to the result, which stays here."""
    if not count:
        return await put(value)
    return tuple(await asyncio.gather(*[put(part) for part in _counted(value, count)]))  # type: ignore[attr-defined]
