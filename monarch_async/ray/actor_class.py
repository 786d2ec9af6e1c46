"""Actor classes: what ``@ray.remote`` makes of a class."""

import inspect
import os
from collections.abc import Mapping
from typing import Any

from monarch_async.ray.actor_handle import ActorFacts, ActorHandle, MethodFacts
from monarch_async.ray.actor_host import Birth
from monarch_async.ray.amounts import of_actor
from monarch_async.ray.arity import Arity, arity_of
from monarch_async.ray.entry import Entry
from monarch_async.ray.hub_actor import Creation
from monarch_async.ray.object_ref import ObjectRef, is_ref
from monarch_async.ray.options import ActorOptions, MethodOptions, check_actor_options
from monarch_async.ray.payload import Packed, Payload, kept_arguments, own, pack, pack_arguments
from monarch_async.ray.placement_group import with_strategy_here
from monarch_async.ray.runtime import Runtime, current
from monarch_async.ray.runtime_env import inherited

#: Where `method` notes what it was given.
NOTES = "__monarch_async_ray_method__"


class ActorClass:
    """An actor class: ``Class.remote(...)`` makes an actor. It is also an instance of the class it was made of, whose
    methods can so be looked at; that is ``Class.__ray_actor_class__``."""

    __ray_actor_class__: type
    _monarch_async: "Made"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse: made by `make_actor_class`. (Deriving from an actor class comes here.)"""
        raise TypeError("an actor class cannot be derived from: derive from the plain class, then decorate that")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        name = self.__ray_actor_class__.__name__
        raise TypeError(f"{name}() would make the object here: {name}.remote() makes an actor")

    def options(self, **given: Any) -> "ActorClassWithOptions":
        """Return the class with other options."""
        return ActorClassWithOptions(self, self._monarch_async.options.merged(given))

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor; return its handle at once."""
        made = self._monarch_async
        return made.create(made.options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("compiled graphs (bind) are not offered: await calls in a coroutine")

    def __reduce__(self) -> tuple[Any, ...]:
        return make_actor_class, (self.__ray_actor_class__, self._monarch_async.given)


class Made:
    """What an actor class knows, under one name: all others are the user's."""

    def __init__(self, cls: type, given: dict[str, Any]) -> None:
        """See `make_actor_class`."""
        self._cls, self.given, self.options = cls, given, check_actor_options(given)
        self._data: bytes | Payload | None = None
        self._known_to: Runtime | None = None
        self._methods: Methods | None = None

    def create(self, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle:
        """Make an actor."""
        runtime, cls = current(), self._cls
        check_arguments(cls, args, kwargs)
        if self._methods is None:
            self._methods = Methods(cls)
        if self._data is None or self._known_to is not runtime:  # in a new session globals may be others
            self._data, self._known_to = own(pack(cls, f"class {cls.__name__}")), runtime
        packed, refs = pack_arguments(args, kwargs, is_ref, f"{cls.__name__}.__init__")
        return create(runtime, cls, self._methods, self._data, options, kept_arguments(runtime, packed), refs)


class ActorClassWithOptions:
    """An actor class, with options."""

    __slots__ = ("_cls", "_options")

    def __init__(self, cls: ActorClass, options: ActorOptions) -> None:
        """Made by `ActorClass.options`."""
        self._cls, self._options = cls, options

    def options(self, **given: Any) -> "ActorClassWithOptions":
        """Return it with still other options."""
        return ActorClassWithOptions(self._cls, self._options.merged(given))

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor; return its handle at once."""
        return self._cls._monarch_async.create(self._options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("compiled graphs (bind) are not offered: await calls in a coroutine")


def make_actor_class(cls: type, given: Mapping[str, Any]) -> Any:
    """Return what ``@remote(**given)`` makes of a class."""
    state = Made(cls, dict(given))
    namespace = {"__module__": cls.__module__, "__doc__": cls.__doc__, "__init__": ActorClass.__init__}
    derived = type(f"ActorClass({cls.__name__})", (ActorClass, cls), namespace)
    made: Any = object.__new__(derived)
    made.__dict__.update(
        __ray_actor_class__=cls, _monarch_async=state, __name__=cls.__name__, __qualname__=cls.__qualname__,
        __doc__=cls.__doc__, __module__=cls.__module__,
    )  # fmt: skip
    return made


def check_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError where ``__init__`` does not take them."""
    if cls.__init__ is object.__init__:
        if args or kwargs:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return
    arity = arity_of(cls.__init__, is_bound=False)
    if arity is not None:
        arity.check(cls.__name__, args, kwargs)


class Methods:
    """The functions of a class, also private ones and those of its bases: looked at once, for all of its actors."""

    def __init__(self, cls: type) -> None:
        """As they are now."""
        self._class_name = cls.__name__
        #: By name: without decorators, what was noted of it, what it takes.
        self._known: dict[str, tuple[Any, MethodOptions, Arity | None]] = {}
        for name, function in inspect.getmembers(cls, callable):
            if _is_method(name, function):
                noted = getattr(function, NOTES, None) or MethodOptions()
                is_bound = inspect.ismethod(function) or isinstance(inspect.getattr_static(cls, name), staticmethod)
                self._known[name] = inspect.unwrap(function), noted, arity_of(function, is_bound)
        #: Whether its actors are async: some method is.
        self.is_async = any(
            inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)
            for plain, _, _ in self._known.values()
        )

    def facts(self, actor: str, options: ActorOptions, sync_on_loop: bool) -> ActorFacts:
        """Return what handles of an actor say."""
        is_threaded = not self.is_async and bool((options.max_concurrency or 1) > 1 or options.concurrency_groups)
        plain_style = "run_async" if self.is_async and sync_on_loop else "run_threaded" if is_threaded else "run"
        found = {
            name: MethodFacts(_style(plain, noted, plain_style), noted, arity)
            for name, (plain, noted, arity) in self._known.items()
        }
        keeps_order = not (self.is_async or is_threaded)
        retries, most = options.max_task_retries or 0, options.max_pending_calls or -1
        return ActorFacts(actor, self._class_name, found, keeps_order, retries, most, plain_style)


def _style(function: Any, noted: MethodOptions, plain_style: str) -> str:
    """Return the endpoint of the host that runs a method."""
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if noted.num_returns == "streaming" or (noted.num_returns is None and yields):
        return "stream"
    return "run_async" if inspect.iscoroutinefunction(function) else plain_style


def _is_method(name: str, value: object) -> bool:
    plain = inspect.unwrap(value) if callable(value) else value  # type: ignore[arg-type]
    is_function = inspect.isfunction(plain) or inspect.ismethod(plain)
    return is_function and not (name.startswith("__") and name.endswith("__") and name not in ("__call__", "__len__"))


def create(
    runtime: Runtime,
    cls: type,
    methods: Methods,
    data: bytes | Payload,
    options: ActorOptions,
    packed: Packed,
    refs: list[ObjectRef[Any]],
) -> ActorHandle:
    """Have the hub make an actor."""
    from monarch_async.ray.install import installation, is_sync_on_loop

    actor, life = os.urandom(16).hex(), runtime.take_number()
    facts = methods.facts(actor, options, is_sync_on_loop())
    limits = {"": options.max_concurrency or (1000 if methods.is_async else 1), **(options.concurrency_groups or {})}
    context = runtime.context
    amounts = of_actor(options)
    options = with_strategy_here(options, amounts, f"actor {cls.__name__}")
    strategy = options.scheduling_strategy
    group = getattr(strategy, "placement_group", None)
    birth = Birth(
        actor, options.name or "", cls.__name__, data, packed, limits, installation(),
        context.namespace or runtime.namespace, amounts.as_ray(), group.id.hex() if group is not None else "",
        bool(getattr(strategy, "captures_children", False)), inherited(runtime.outer_env, options.runtime_env),
        facts, life,
    )  # fmt: skip
    creation = Creation(birth, options, options.namespace or context.namespace or runtime.namespace)
    if options.name and not runtime.is_on_loop:  # whether the name is free is known at once
        made: Any = runtime.ask_hub("actors.create_named", creation, refs)
        return ActorHandle(*made)
    if runtime.is_driver:
        entry = Entry(runtime, life, "an actor")
        runtime.post(runtime.hub_access.actors.create, creation, refs, entry)  # type: ignore[attr-defined]
        return ActorHandle(facts, ObjectRef(entry))
    runtime.post(runtime.tell_hub, "actors.create", creation, refs)
    return ActorHandle(facts, runtime.borrowed(life))
