"""Handles of actors: ``handle.method.remote(...)``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monarch_async.ray.actor_stream import ActorStream
from monarch_async.ray.arity import Arity
from monarch_async.ray.calling import ActorCall, ActorClient
from monarch_async.ray.entry import Entry
from monarch_async.ray.exceptions import PendingCallsLimitExceeded
from monarch_async.ray.generator import ObjectRefGenerator
from monarch_async.ray.object_ref import ObjectRef, is_ref
from monarch_async.ray.options import MethodOptions
from monarch_async.ray.payload import kept_arguments, pack_arguments
from monarch_async.ray.runtime import Runtime, current


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """How a method is called: the endpoint of the host that runs it, and its options."""

    style: str
    options: MethodOptions
    arity: Arity | None = None  #: None: any arguments are sent


@dataclass(frozen=True, slots=True)
class ActorFacts:
    """What a handle says of its actor."""

    actor: str  #: its id, as hex
    class_name: str
    methods: Mapping[str, MethodFacts]
    keeps_order: bool
    max_task_retries: int
    max_pending_calls: int  #: of one process; not positive: any number
    special_style: str  #: of ``__ray_call__`` and the like


class ActorID:
    """The id of an actor."""

    __slots__ = ("_hex",)

    def __init__(self, hex: str) -> None:
        """As text."""
        self._hex = hex

    def hex(self) -> str:
        """Return it as text."""
        return self._hex

    def binary(self) -> bytes:
        """Return it as bytes."""
        return bytes.fromhex(self._hex)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorID) and other._hex == self._hex

    def __hash__(self) -> int:
        return hash(self._hex)

    def __repr__(self) -> str:
        return f"ActorID({self._hex})"


_SPECIAL = ("__ray_call__", "__ray_ready__", "__ray_terminate__")


class _Line:
    """What a handle and its methods share: either keeps the actor, and they do not refer to each other, so that the
    last of them goes when it is dropped. ``life`` is what keeps it; None: that is left to others."""

    __slots__ = ("client", "facts", "life")

    def __init__(self, facts: ActorFacts, life: ObjectRef[Any] | None) -> None:
        self.facts, self.life = facts, life
        self.client: ActorClient | None = None

    def client_in(self, runtime: Runtime) -> ActorClient:
        client = self.client
        if client is None or client.runtime is not runtime:
            client = self.client = runtime.calling.client(self.facts.actor, self.facts.keeps_order)
        return client


class ActorHandle:
    """A handle of an actor. It pickles and copies; the actor lives as long as there is one, or it was made to stay."""

    _facts: ActorFacts
    _line: _Line

    def __init__(self, facts: ActorFacts, life: ObjectRef[Any] | None) -> None:
        """``life`` keeps the actor."""
        self.__dict__["_facts"], self.__dict__["_line"] = facts, _Line(facts, life)

    @property
    def _actor_id(self) -> ActorID:
        return ActorID(self._facts.actor)

    _ray_actor_id = _actor_id

    def __getattr__(self, name: str) -> "ActorMethod":
        facts = self.__dict__["_facts"]
        found = facts.methods.get(name)
        if found is None:
            if name not in _SPECIAL:
                raise AttributeError(f"'{facts.class_name}' object has no attribute '{name}'")
            found = MethodFacts(facts.special_style, MethodOptions())
        method = self.__dict__[name] = ActorMethod(self._line, name, found)
        return method

    def __dir__(self) -> list[str]:
        return [*self._facts.methods, *_SPECIAL]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._facts.actor == self._facts.actor

    def __hash__(self) -> int:
        return hash(self._facts.actor)

    def __copy__(self) -> "ActorHandle":
        return self

    def __deepcopy__(self, memo: object) -> "ActorHandle":
        return self

    def __repr__(self) -> str:
        return f"Actor({self._facts.class_name}, {self._facts.actor})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorHandle, (self._facts, self._line.life)


class ActorMethod:
    """A method of a handle."""

    __slots__ = ("_arity", "_line", "_options", "_style", "name")

    def __init__(self, line: _Line, name: str, facts: MethodFacts) -> None:
        """Of the actor of this line."""
        self._line, self.name = line, name
        self._style, self._options, self._arity = facts.style, facts.options, facts.arity

    def options(self, **given: Any) -> "ActorMethod":
        """Return the method with other options."""
        return ActorMethod(self._line, self.name, MethodFacts(self._style, self._options.merged(given), self._arity))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise TypeError(f"{self.name}() of an actor is called as .{self.name}.remote()")

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse."""
        raise NotImplementedError("compiled graphs (bind) are not offered: await calls in a coroutine")

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; return the reference of the result, or several, or a generator of them."""
        runtime = current()
        options, line = self._options, self._line
        facts = line.facts
        what = f"{facts.class_name}.{self.name}"
        if self._arity is not None:
            self._arity.check(what, args, kwargs)
        packed, refs = pack_arguments(args, kwargs, is_ref, what)
        packed = kept_arguments(runtime, packed)
        group = options.concurrency_group or ""
        count = options.num_returns
        if count == "streaming" or self._style == "stream":
            return self._stream(runtime, what, (self.name, group, 1), packed, refs)
        count = 1 if count is None else int(count)
        entries = [runtime.new_entry(what) for _ in range(count)]
        for entry in entries:
            entry.actor = facts.actor
        retries = options.max_task_retries
        if retries is None:
            retries = facts.max_task_retries
        client = line.client_in(runtime)
        if 0 < facts.max_pending_calls <= client.unanswered:
            raise PendingCallsLimitExceeded(
                f"{what}: {client.unanswered} calls of this process wait, and max_pending_calls is "
                f"{facts.max_pending_calls}"
            )
        client.unanswered += 1
        call = ActorCall(
            self._style, (self.name, group, count), packed, [ref._entry for ref in refs], entries, retries, line.life,
            (Exception,) if options.retry_exceptions is True else options.retry_exceptions or (),
        )  # fmt: skip
        runtime.post(client.submit, call)
        if count == 1:
            return ObjectRef(entries[0])
        return [ObjectRef(entry) for entry in entries] or None

    def _stream(self, runtime: Runtime, what: str, method: tuple[str, str, int], packed: Any, refs: Any) -> Any:
        generator = ObjectRefGenerator(runtime, what, self._options.generator_backpressure)
        slots: list[Entry] = [ref._entry for ref in refs]
        client = self._line.client_in(runtime)
        client.unanswered += 1
        call = ActorStream(
            generator, method, packed, slots, self._line.life, takes_turn=self._line.facts.keeps_order
        )
        runtime.post(client.submit, call)
        return generator

    def __repr__(self) -> str:
        return f"ActorMethod({self._line.facts.class_name}.{self.name})"


def current_actor() -> ActorHandle:
    """Return a handle of the actor that runs here. Raises RuntimeError where there is none."""
    runtime = current()
    context = runtime.context
    if not context.actor_id:
        raise RuntimeError("no actor runs here")
    life = ObjectRef(runtime.borrowing.borrow(runtime.hub_address, context.actor_life, None))
    return ActorHandle(context.actor_facts, life)
