"""Values as the facade keeps and sends them: pickled once, where they are made; unpickled where somebody gets them.

A value is ``bytes`` where it has no large buffers and no references inside, as most have, else a `Payload`; a large one
is `Stored`: a shared object of the host where it was made. References inside of a value say only which object they are;
they travel beside it, so that whoever keeps the value keeps what it refers to.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from monarch_async.mesh.ref import Ref
from monarch_async.wire.object_layout import lay_out
from monarch_async.wire.payload import Buffer, Encoded, dumps

if TYPE_CHECKING:
    from monarch_async.mesh.domain import Domain
    from monarch_async.mesh.holding import Pin
    from monarch_async.ray.object_ref import ObjectRef
    from monarch_async.ray.runtime import Runtime

#: From so many bytes on a value is put into shared memory, where all processes of its host read it.
LARGE = 1 << 20

#: References in the value that is being packed; see the module.
inside: ContextVar["list[ObjectRef] | None"] = ContextVar("monarch_async_ray_inside", default=None)


class Payload:
    """A pickled value: its skeleton, its large buffers, and the references inside of it."""

    __slots__ = ("buffers", "refs", "skeleton")

    def __init__(self, skeleton: bytes, buffers: Sequence[Buffer], refs: "Sequence[ObjectRef]") -> None:
        """``buffers`` are those of `dumps`; ``refs`` keep what they refer to."""
        self.skeleton, self.buffers, self.refs = skeleton, buffers, refs

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return len(self.skeleton) + sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Payload, (self.skeleton, [pickle.PickleBuffer(buffer) for buffer in self.buffers], list(self.refs))


class Stored:
    """A value that is a shared object."""

    __slots__ = ("__weakref__", "pin", "ref", "refs")

    def __init__(self, ref: Ref[Any], refs: "Sequence[ObjectRef]") -> None:
        """``refs`` keep what is inside of it."""
        self.ref, self.refs = ref, refs
        self.pin: Pin | None = None  #: see `entry.value_of`

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.ref, list(self.refs))


Packed = bytes | Payload | Stored


def pack(value: object, what: str) -> bytes | Payload:
    """Pickle a value. Raises TypeError naming the part of ``what`` that does not pickle, as Ray does."""
    if type(value) in _SCALARS:
        return pickle.dumps(value, 5)
    refs: list[ObjectRef] = []
    token = inside.set(refs)
    try:
        encoded = dumps(value, what)
    except pickle.PicklingError as error:
        raise TypeError(str(error)) from error
    finally:
        inside.reset(token)
    if not encoded.buffers and not refs:
        return encoded.skeleton
    return Payload(encoded.skeleton, encoded.buffers, refs)


def own(packed: bytes | Payload) -> bytes | Payload:
    """Return what may be sent later: buffers are the caller's, who may write to them meanwhile."""
    if type(packed) is Payload and packed.buffers:
        packed.buffers = [bytes(buffer) for buffer in packed.buffers]
    return packed


def nbytes_of(packed: bytes | Payload) -> int:
    """Return how many bytes it has."""
    return len(packed) if type(packed) is bytes else packed.nbytes  # type: ignore[union-attr]


async def store(packed: bytes | Payload, domain: "Domain") -> Stored:
    """Put it into the memory of this host. Raises StoreFull."""
    if isinstance(packed, bytes):
        packed = Payload(packed, (), ())
    buffers = [memoryview(buffer).cast("B") for buffer in packed.buffers]
    keeper = await domain.holdings.put(lay_out(Encoded(packed.skeleton, buffers)), domain.name_of, ())
    return Stored(Ref(keeper.holding.facts, domain.router.plane.cluster, keeper), packed.refs)


#: What keeps the references that are being unpickled until their owners know of this process.
holder: ContextVar[object] = ContextVar("monarch_async_ray_holder", default=None)


@contextmanager
def held_by(keeper: object) -> Iterator[None]:
    """What is unpickled in this block is kept by ``keeper`` until this process has said that it holds it."""
    token = holder.set(keeper)
    try:
        yield
    finally:
        holder.reset(token)


def unpack(packed: bytes | Payload, keeper: object = None) -> object:
    """Return the value, anew each time; its arrays are read-only, as all of Ray's are. ``keeper``: see `held_by`.

    Tensors know no such thing: they are copies, as the same bytes are given to whoever asks next.
    """
    if type(packed) is bytes:
        return pickle.loads(packed)
    assert isinstance(packed, Payload)
    with held_by((keeper, packed)):
        return pickle.loads(packed.skeleton, buffers=[memoryview(buffer).toreadonly() for buffer in packed.buffers])


#: What most calls have, made fast.
_NOTHING = pickle.dumps(((), {}), 5)
_SCALARS = frozenset({type(None), bool, int, float, str})
are_scalars = _SCALARS.issuperset  # of types


class Slot:
    """Stands for a reference among the arguments, whose value comes beside them."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        """``index``: among those."""
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, (self.index,)


def pack_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], is_ref: Callable[[object], bool], what: str
) -> "tuple[bytes | Payload, list[ObjectRef]]":
    """Pickle arguments; return them, and the references among (not inside of) them, whose places have a `Slot`."""
    if not args and not kwargs:
        return _NOTHING, []
    if are_scalars(map(type, args)) and (not kwargs or are_scalars(map(type, kwargs.values()))):
        return pickle.dumps((args, kwargs), 5), []
    refs: list[Any] = []
    if any(map(is_ref, args)) or any(map(is_ref, kwargs.values())):

        def placed(value: Any) -> Any:
            if not is_ref(value):
                return value
            refs.append(value)
            return Slot(len(refs) - 1)

        args, kwargs = tuple([placed(value) for value in args]), {name: placed(value) for name, value in kwargs.items()}
    return pack((args, kwargs), f"arguments of {what}"), refs


def kept_arguments(runtime: "Runtime", packed: bytes | Payload) -> Packed:
    """Return arguments as they may be sent later, and again. Large ones are put into shared memory, copied once."""
    if type(packed) is bytes:
        return packed
    if nbytes_of(packed) >= LARGE and not runtime.is_on_loop:
        return runtime.run(store(packed, runtime.domain))
    return own(packed)


def fill(given: Any, values: Sequence[object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments as they were given, with ``values`` in the places of slots."""
    args, kwargs = given
    if not values:
        return args, kwargs
    filled = tuple([values[value.index] if type(value) is Slot else value for value in args])
    return filled, {name: values[value.index] if type(value) is Slot else value for name, value in kwargs.items()}
