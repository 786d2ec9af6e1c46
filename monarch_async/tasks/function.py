"""Functions on their way to workers: pickled once, known by their contents."""

import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from monarch_async.errors import BadCall
from monarch_async.wire.payload import Encoded, Ticketed, dumps


class TaskFunction:
    """A function as workers get it. Those with the same ``id`` are the same."""

    __slots__ = ("buffers", "id", "is_coroutine", "is_stream", "keywords", "name", "nbytes", "skeleton", "tickets")

    def __init__(self, function: Callable[..., Any]) -> None:
        """Pickle it. Raises BadCall where it is no function that can run as a task, PicklingError."""
        plain = _unwrapped(function)
        self.name = _name_of(plain)
        if not callable(function):
            raise BadCall("submit", f"{function!r} is no function")
        if inspect.isgeneratorfunction(plain):
            raise BadCall(f"task {self.name}", "a plain generator cannot stream: make it `async def`, or return a list")
        self.is_stream = inspect.isasyncgenfunction(plain)
        self.is_coroutine = inspect.iscoroutinefunction(plain)
        self.keywords = _keywords_of(function)
        encoded = dumps(function, "function", of=f"task {self.name}")
        #: What it refers to of shared objects is held here until every worker has had its copy.
        self.tickets = encoded.tickets if isinstance(encoded, Ticketed) else ()
        self.skeleton, self.buffers = encoded.skeleton, [bytes(buffer) for buffer in encoded.buffers]
        digest = hashlib.blake2b(self.skeleton, digest_size=16)
        for buffer in self.buffers:
            digest.update(buffer)
        self.id = digest.digest()
        self.nbytes = len(self.skeleton) + sum(map(len, self.buffers))

    def check(self, kwargs: Iterable[str]) -> None:
        """Raise BadCall where it has no argument of such a name: where an option was meant, say."""
        unknown = [name for name in kwargs if name not in self.keywords] if self.keywords is not None else []
        if unknown:
            why = f"it has no argument {unknown[0]!r}, and there is no such option: see `TaskOptions`"
            raise BadCall(f"task {self.name}", why)


_known: WeakKeyDictionary[Callable[..., Any], TaskFunction] = WeakKeyDictionary()


#: What is known by being the same object. Partials, bound methods and objects that can be called have a state, which
#: may be another the next time.
_STATELESS = types.FunctionType | types.BuiltinFunctionType | type


def function_of(function: Callable[..., Any], is_stream: bool = False) -> TaskFunction:
    """Return a function as workers get it; raises as `TaskFunction`, and BadCall unless it is a stream as is said.

    A plain function is pickled the first time, as it was then; what has a state of its own each time, as it is now.
    """
    found = _find(function)
    if found.is_stream and not is_stream:
        raise BadCall(f"task {found.name}", "it is an async generator, and this returns once: say .stream of `ma.task`")
    if is_stream and not found.is_stream:
        raise BadCall(f"{found.name}.stream", "it is no async generator, so it returns once: say .submit")
    return found


def _find(function: Callable[..., Any]) -> TaskFunction:
    if not isinstance(function, _STATELESS):
        return TaskFunction(function)
    found = _known.get(function)
    if found is None:
        found = _known[function] = TaskFunction(function)
    return found


def copied(encoded: Encoded) -> Encoded:
    """Return what may be sent later, and again: its buffers are the caller's, who may write to them meanwhile."""
    for index, buffer in enumerate(encoded.buffers):
        encoded.buffers[index] = memoryview(bytes(buffer))
    return encoded


def _keywords_of(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return by which names it takes arguments; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset([parameter.name for parameter in parameters if parameter.kind in named])


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if not (inspect.isroutine(function) or isinstance(function, type)) and callable(function):
        return type(function).__call__  # an object that can be called
    return function


def _name_of(function: object) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return name.replace("<locals>.", "").removesuffix(".__call__")
