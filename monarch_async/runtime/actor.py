"""What a user writes: a class deriving from `Actor`, with methods decorated by `endpoint`.

The decorator only takes notes. What may be called, with what arguments and how it runs is an `Interface`, made once
per class; it is small, pickles without the class, and travels inside every reference, so that a caller can check a
call without importing the actor's code.
"""

import dis
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from monarch_async.errors import BadCall, BadEndpoint

if TYPE_CHECKING:
    from typing import Self

    from monarch_async.control.supervision import Failure
    from monarch_async.mesh.endpoint import Endpoint, StreamEndpoint
    from monarch_async.ranks import Extent

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Style(Enum):
    """How an endpoint runs."""

    COROUTINE = "async def"  #: on the proc's loop
    THREAD = "def"  #: on the actor's own thread
    STREAM = "async generator"  #: on the proc's loop, item by item with credit


class _Optional(Enum):
    """Stands for a default value, which stays in the worker."""

    OPTIONAL = "..."

    def __repr__(self) -> str:
        return "..."


OPTIONAL = _Optional.OPTIONAL


@dataclass(frozen=True)
class EndpointSpec:
    """One endpoint: its name, style, and signature without ``self`` (defaults and annotations left out)."""

    name: str
    style: Style
    signature: inspect.Signature

    @cached_property
    def positional(self) -> tuple[int, float]:
        """How many positional arguments alone make a valid call: (least, most); (1, 0) where none can."""
        least = most = 0
        for parameter in self.signature.parameters.values():
            required = parameter.default is parameter.empty
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                most += 1
                least += required
            elif parameter.kind is parameter.VAR_POSITIONAL:
                most = float("inf")
            elif parameter.kind is parameter.KEYWORD_ONLY and required:
                return 1, 0
        return least, most

    def check(self, where: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Raise `BadCall` where the arguments do not fit."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadCall(where, f"{error}; its signature is {self.name}{self.signature}") from None


@dataclass(frozen=True)
class Interface:
    """What an actor class offers: its name, endpoints, and the names of its other public methods."""

    name: str
    endpoints: dict[str, EndpointSpec]
    methods: frozenset[str] = frozenset()


class EndpointMark(Generic[P, R]):
    """A decorated method. On an instance it is the plain method; on a mesh an `Endpoint` with adverbs."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> "Self": ...
        @overload
        def __get__(self, instance: object, owner: type) -> "Endpoint[P, R]": ...

    def __get__(self, instance: object, owner: type) -> Any:
        """Inside the actor, ``self.step(x)`` is an ordinary call of the method."""
        return self if instance is None else self.function.__get__(instance, owner)


class StreamMark(EndpointMark[P, R]):
    """A decorated async generator."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> "Self": ...
        @overload
        def __get__(self, instance: object, owner: type) -> "StreamEndpoint[P, R]": ...

        def __get__(self, instance: object, owner: type) -> Any: ...  # type: ignore[override]


@overload
def endpoint(function: Callable[Concatenate[A, P], AsyncIterator[R]]) -> StreamMark[P, R]: ...
@overload
def endpoint(function: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> EndpointMark[P, R]: ...
@overload
def endpoint(function: Callable[Concatenate[A, P], R]) -> EndpointMark[P, R]: ...
def endpoint(function: Callable[..., Any]) -> Any:
    """Mark a method of an `Actor` as callable from other procs.

    ``async def`` runs on the proc's event loop, plain ``def`` on the actor's own thread, an async generator streams.
    Raises `BadEndpoint` for anything else.
    """
    if not inspect.isfunction(function):
        raise BadEndpoint(f"@endpoint on {function!r}", "it must decorate a function defined in an Actor class")
    if inspect.isgeneratorfunction(function):
        raise BadEndpoint(f"endpoint {function.__qualname__}", "a plain generator cannot stream: make it `async def`")
    return StreamMark(function) if _style_of(function) is Style.STREAM else EndpointMark(function)


#: Names a mesh has itself: an endpoint of that name could not be reached.
RESERVED = frozenset(
    (
        "extent", "size", "name", "region", "interface", "identity", "cast", "label", "points", "slice", "flatten",
        "split", "rename", "at", "seen_through", "require_one", "stop", "restart", "call", "call_one", "choose",
        "stream", "stream_one", "broadcast", "options", "_actor_id", "_members", "_max_concurrency", "_group", "_owned",
        "_find_group",
    )
)


class Actor:
    """Base of all actors. Subclass it, mark methods with `endpoint`, spawn it on a `ProcMesh`.

    ``__init__`` runs in the worker: on the actor's own thread where the class has plain ``def`` endpoints, else on the
    loop. Two optional hooks run on the loop: ``async def setup(self)`` after ``__init__`` and before the first call,
    and ``async def teardown(self)`` before an orderly stop, for ``stop_grace`` at most (see `Config`).
    ``async def __supervise__(self, failure) -> bool`` is told of failures of what this actor spawned; returning true
    handles them.

    ``max_concurrency`` bounds how many of its ``async`` endpoints run at a time; 1 makes the actor strictly serial.
    """

    max_concurrency: int = 1000

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Find clashes when the class is defined, not when it is called."""
        super().__init_subclass__(**kwargs)
        for name, value in [item for base in cls.__mro__ for item in vars(base).items()]:  # of mixins too
            if isinstance(value, EndpointMark) and (name in RESERVED or name.startswith("__")):
                raise BadEndpoint(
                    f"endpoint {cls.__name__}.{name}", f"every mesh has {name!r} itself: give it another name"
                )
        limit = cls.max_concurrency
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            why = f"max_concurrency is {cls.max_concurrency!r}: it must be 1 or more"
            raise BadEndpoint(f"actor {cls.__name__}", why)

    if TYPE_CHECKING:
        # What `ProcMesh.spawn` returns looks like the class to an editor, so that endpoints complete; these are the
        # names a mesh adds. They exist on meshes only.
        name: str
        extent: Extent
        size: int

        def __await__(self) -> Generator[Any, None, Self]: ...
        def slice(self, **axes: "int | slice") -> Self: ...
        def flatten(self, name: str) -> Self: ...
        def split(self, **axes: "int | tuple[str, ...]") -> Self: ...
        def rename(self, **axes: str) -> Self: ...
        def at(self, rank: int) -> Self: ...
        def stop(self) -> Awaitable[None]: ...
        def restart(self, rank: int) -> Awaitable[None]: ...
        async def __supervise__(self, failure: Failure) -> bool: ...


def interface_of(cls: type) -> Interface:
    """Return what ``cls`` offers. Raises `BadEndpoint` where it is no actor class or has no endpoint."""
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise BadEndpoint(f"cannot spawn {cls!r}", "it is not a class deriving from monarch_async.Actor")
    found = cls.__dict__.get("__interface__")
    if found is None:
        endpoints: dict[str, EndpointSpec] = {}
        methods: set[str] = set()
        for name in dir(cls):
            value = inspect.getattr_static(cls, name, None)
            if isinstance(value, EndpointMark):
                endpoints[name] = _spec(name, value.function)
            elif not name.startswith("_") and callable(value):
                methods.add(name)
        if not endpoints:
            raise BadEndpoint(f"actor {cls.__name__}", "it has no endpoint: decorate a method with @ma.endpoint")
        found = Interface(cls.__name__, endpoints, frozenset(methods))
        cls.__interface__ = found  # type: ignore[attr-defined]
    return found


def _spec(name: str, function: Callable[..., object]) -> EndpointSpec:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise BadEndpoint(f"endpoint {function.__qualname__}", "it takes no self")
    bare = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else OPTIONAL) for p in parameters[1:]
    ]
    return EndpointSpec(name, _style_of(function), inspect.Signature(bare))


def _style_of(function: Callable[..., object]) -> Style:
    """A decorator that follows `functools.wraps` passes on what it decorates: its result is awaited or streamed too."""
    function = inspect.unwrap(function)
    if inspect.isasyncgenfunction(function):
        return Style.STREAM
    return Style.COROUTINE if inspect.iscoroutinefunction(function) else Style.THREAD


_WAITING_OPS = {"GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "SEND"}


def never_waits(function: Callable[..., object]) -> bool:
    """Return whether a coroutine function has no await at all, so that it can run without a task.

    Such an endpoint is stepped once in place of the task it would finish in; one that asks for the current task
    gets a task.
    """
    code = getattr(function, "__code__", None)
    if code is None or not inspect.iscoroutinefunction(function) or "current_task" in code.co_names:
        return False
    return not any(instruction.opname in _WAITING_OPS for instruction in dis.get_instructions(code))
