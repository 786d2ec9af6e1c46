"""The actor in every process of one: it has the user's object, and calls its methods as Ray does.

- Plain methods of a plain actor run one by one on one thread, in the order of the calls.
- With ``max_concurrency`` or concurrency groups they run on the threads of their group.
- An async actor's coroutines run on the loop, so many at a time as their group allows; its plain methods on the thread,
  so that they do not stop the others (with ``install(sync_on_loop=True)`` on the loop, as under Ray).
"""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, NoReturn

from monarch_async.errors import Lost
from monarch_async.ray.context import RunningContext
from monarch_async.ray.departure import end_process, run_exit_handlers
from monarch_async.ray.entry import refs_of, value_of, value_of_on_loop
from monarch_async.ray.payload import Packed, Payload, Stored, fill
from monarch_async.ray.runtime import Runtime, current
from monarch_async.ray.task_body import apply_runtime_env, iterate, kept, kept_on_loop, load_function, split
from monarch_async.ray.task_error import RayTaskError
from monarch_async.runtime.actor import Actor, endpoint

#: Seconds in which a stream comes after what holds its turn; longer, and its caller is gone.
_SOON = 10.0

CalledMethod = tuple[str, str, int]  #: name, group, count of results


@dataclass(frozen=True, slots=True)
class Birth:
    """What an actor is made of. ``limits``: calls at a time, by concurrency group ("" is the default one)."""

    actor: str
    name: str
    class_name: str
    cls: bytes | Payload
    arguments: Packed
    limits: Mapping[str, int]
    installs: bool | None
    namespace: str
    resources: Mapping[str, float] = field(default_factory=dict)
    group: str = ""
    captures: bool = False
    runtime_env: Mapping[str, Any] | None = None
    facts: Any = None  #: see `RunningContext`, as of the next
    life: int = 0
    is_restarted: bool = False
    node_address: str = ""


class ActorExit(BaseException):
    """Raised by `exit_actor`: the actor ends, in order."""


class ActorHost(Actor):
    """See the module."""

    def __init__(self, birth: Birth, values: Sequence[Packed], creation: Packed | None = None) -> None:
        """On the thread. ``creation``: what the hub of a later driver is told of a detached actor."""
        self._birth, self._creation = birth, creation
        given = birth.cls, birth.arguments
        self._has_objects = bool(values) or any(isinstance(part, Stored) or refs_of(part) for part in given)
        self._runtime: Runtime = current()
        self._context = RunningContext(
            actor_id=birth.actor, actor_name=birth.name, assigned_resources=birth.resources,
            is_restarted=birth.is_restarted, placement_group=birth.group, captures=birth.captures,
            namespace=birth.namespace, runtime_env=birth.runtime_env, actor_facts=birth.facts, actor_life=birth.life,
        )  # fmt: skip
        self._runtime.outside = self._context
        self._runtime.node_address = birth.node_address
        self._running = ""
        self._turns: dict[int, _Turn] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        apply_runtime_env(birth.runtime_env)
        cls = load_function(birth.cls, birth.installs)
        try:
            args, kwargs = self._arguments(birth.arguments, values)
            self._object = cls(*args, **kwargs)
        except Exception as error:
            raise self._told(error, "__init__") from None

    # -- the four ways ---------------------------------------------------------------------------------------------

    @endpoint
    def run(self, method: CalledMethod, packed: Packed, values: Sequence[Packed]) -> Any:
        """A plain method, on the actor's thread."""
        return self._call(method, packed, values)

    @endpoint
    def hold_turn(self, number: int) -> None:
        """On the actor's thread: it is lent to the stream of this number, which is sent right after this."""
        turn = self._turns.setdefault(number, _Turn())
        self._runtime.post(turn.come.set)
        while not turn.over.wait(_SOON):
            if not turn.is_taken:
                return
        self._turns.pop(number, None)

    @endpoint
    async def run_threaded(self, method: CalledMethod, packed: Packed, values: Sequence[Packed]) -> Any:
        """A plain method, on a thread of its group."""
        threads = self._threads_of(method[1])
        run: Callable[..., Any] = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(threads, run, self._call, method, packed, values)

    @endpoint
    async def run_async(self, method: CalledMethod, packed: Packed, values: Sequence[Packed]) -> Any:
        """A coroutine, or a plain method that is to run on the loop."""
        async with self._limit_of(method[1]):
            try:
                args, kwargs = await self._arguments_on_loop(packed, values)
                result = self._find(method[0])(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = await result
                return await self._answer_on_loop(result, method)
            except (ActorExit, SystemExit) as exit:
                await self._leave(exit)
            except Exception as error:
                raise self._told(error, method[0]) from None

    @endpoint
    async def run_stream(
        self, method: CalledMethod, packed: Packed, values: Sequence[Packed], turn: int
    ) -> AsyncIterator[Packed]:
        """A generator, or an async generator. ``turn``: see `hold_turn`; 0: so many at a time as its group allows."""
        limit: Any = self._in_turn(turn) if turn else self._limit_of(method[1])
        async with limit:
            try:
                args, kwargs = await self._arguments_on_loop(packed, values)
                made = self._find(method[0])(*args, **kwargs)
                async for item in iterate(made, f"{self._birth.class_name}.{method[0]}"):
                    yield await kept_on_loop(item, self._runtime)
            except (ActorExit, SystemExit) as exit:
                await self._leave(exit)
            except Exception as error:
                raise self._told(error, method[0]) from None

    @endpoint
    async def describe(self) -> tuple[Packed | None, Birth | None]:
        """Return what the hub of a later driver is to know of it, and of what to make it anew; None: it was given
        objects, which are gone with the driver before."""
        return self._creation, None if self._has_objects else self._birth

    @asynccontextmanager
    async def _in_turn(self, number: int) -> AsyncIterator[None]:
        turn = self._turns.setdefault(number, _Turn())
        turn.is_taken = True
        try:
            await turn.come.wait()
            yield
        finally:
            turn.over.set()

    # -- parts -----------------------------------------------------------------------------------------------------

    def __describe_call__(self, endpoint: str) -> str:
        """Return what runs, for tables: the method, where there is one at a time."""
        return self._running if endpoint == "run" and self._running else endpoint

    def _call(self, method: CalledMethod, packed: Packed, values: Sequence[Packed]) -> Any:
        self._running = method[0]
        try:
            args, kwargs = self._arguments(packed, values)
            result = self._find(method[0])(*args, **kwargs)
            del args, kwargs
            if method[2] == 1:
                return kept(result, self._runtime)
            return [kept(value, self._runtime) for value in split(result, method[2], method[0])]
        except (ActorExit, SystemExit) as exit:
            self._runtime.run(self._leave(exit))
        except Exception as error:
            raise self._told(error, method[0]) from None

    def _told(self, error: Exception, method: str) -> RayTaskError:
        birth = self._birth
        return RayTaskError.to_raise(error, f"{birth.class_name}.{method}", birth.name or None, birth.actor)

    def _find(self, name: str) -> Callable[..., Any]:
        found = self._methods.get(name)
        if found is None:
            found = self._methods[name] = self._special(name) or getattr(self._object, name)
        return found

    def _special(self, name: str) -> Callable[..., Any] | None:
        if hasattr(self._object, name):
            return None
        if name == "__ray_call__":
            return lambda function, *args, **kwargs: function(self._object, *args, **kwargs)
        if name == "__ray_ready__":
            return lambda: True
        if name == "__ray_terminate__":
            return _terminate
        return None

    def _arguments(self, packed: Packed, values: Sequence[Packed]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        runtime = self._runtime
        return fill(value_of(packed, runtime), [value_of(value, runtime) for value in values] if values else ())

    async def _arguments_on_loop(self, packed: Packed, values: Sequence[Packed]) -> tuple[tuple[Any, ...], Any]:
        filled = [await value_of_on_loop(value) for value in values] if values else ()
        return fill(await value_of_on_loop(packed), filled)

    async def _answer_on_loop(self, result: object, method: CalledMethod) -> Any:
        if method[2] == 1:
            return await kept_on_loop(result, self._runtime)
        return [await kept_on_loop(value, self._runtime) for value in split(result, method[2], method[0])]

    def _threads_of(self, group: str) -> ThreadPoolExecutor:
        found = self._threads.get(group)
        if found is None:
            name = f"{self._birth.class_name}.{group}" if group else self._birth.class_name
            found = self._threads[group] = ThreadPoolExecutor(self._limit(group), thread_name_prefix=name)
        return found

    def _limit_of(self, group: str) -> asyncio.Semaphore:
        found = self._limits.get(group)
        if found is None:
            found = self._limits[group] = asyncio.Semaphore(self._limit(group))
        return found

    def _limit(self, group: str) -> int:
        if group not in self._birth.limits:
            known = ", ".join(filter(None, self._birth.limits)) or "none"
            raise ValueError(f"{self._birth.class_name} has no concurrency group {group!r}; known are: {known}")
        return self._birth.limits[group]

    async def _leave(self, exit: ActorExit | SystemExit) -> NoReturn:
        """A method ends the actor, for good; after ``sys.exit(1)``, which is a failure, it may be made anew.

        Waits until it has ended: its caller is to see that, and no result.
        """
        await self._runtime.leave()
        if isinstance(exit, SystemExit) and exit.code:
            await asyncio.to_thread(end_process, exit)
        await asyncio.to_thread(run_exit_handlers)
        name = "exit_actor" if isinstance(exit, ActorExit) else "sys.exit"
        try:
            await self._runtime.hub("actors.exited", self._birth.actor, f"{name}() was called")
        except Lost:  # it is detached, and has no driver that would end it
            await asyncio.to_thread(end_process, SystemExit())
        await self._runtime.loop.create_future()
        raise AssertionError("it has ended")


def _terminate() -> None:
    raise ActorExit


class _Turn:
    """A stream's, among the calls on the actor's thread."""

    __slots__ = ("come", "is_taken", "over")

    def __init__(self) -> None:
        """Neither the thread nor the stream has come."""
        self.come, self.over = asyncio.Event(), threading.Event()
        self.is_taken = False  #: the stream has come
