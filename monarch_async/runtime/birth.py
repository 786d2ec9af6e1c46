"""How an actor comes to be: its recipe unpickled, ``__init__`` called, its methods bound, ``setup`` run."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from monarch_async.runtime.actor import Actor, EndpointMark, Interface, Style, interface_of, never_waits
from monarch_async.runtime.actor_thread import ActorThread

Recipe = tuple[type[Actor], tuple[Any, ...], dict[str, Any]]


class Method(NamedTuple):
    """An endpoint of one actor, bound; ``is_immediate``: it never awaits, and runs without a task."""

    call: Callable[..., Any]
    style: Style
    is_immediate: bool


def read_recipe(name: str, make: Callable[[], Recipe]) -> Recipe:
    """Unpickle what the actor is made of; what that raises says what it was about."""
    try:
        return make()
    except Exception as error:
        error.add_note(f"raised while unpickling the class and arguments of {name}")
        raise


def needs_thread(interface: Interface) -> bool:
    """Return whether some endpoint is a plain ``def``."""
    return any(spec.style is Style.THREAD for spec in interface.endpoints.values())


async def construct(recipe: Recipe, thread: ActorThread | None) -> tuple[object, BaseException | None]:
    """Call the class: on the actor's thread where it has one, else here. Return the actor, and what that raised.

    It is returned, not raised: neither a coroutine nor a future lets a StopIteration through.
    """

    def make() -> tuple[object, BaseException | None]:
        cls, args, kwargs = recipe
        try:
            return cls(*args, **kwargs), None
        except BaseException as error:
            return None, error

    return make() if thread is None else await thread.run(make)


def bind(cls: type[Actor], actor: object) -> dict[str, Method]:
    """Return the endpoints of an actor by name."""
    methods = {}
    for name, spec in interface_of(cls).endpoints.items():
        function = inspect.getattr_static(cls, name).function
        is_immediate = spec.style is Style.COROUTINE and never_waits(function)
        methods[name] = Method(function.__get__(actor), spec.style, is_immediate)
    return methods


def find_hook(actor: object, name: str) -> Callable[[], Awaitable[None] | None] | None:
    """Return an actor's ``setup`` or ``teardown``, where it has one that is no endpoint."""
    static = inspect.getattr_static(type(actor), name, None)
    return None if static is None or isinstance(static, EndpointMark) else getattr(actor, name)


async def run_hook(hook: Callable[[], Awaitable[None] | None]) -> None:
    """Call a hook, and await it where it is to be awaited."""
    value = hook()
    if inspect.isawaitable(value):
        await value
