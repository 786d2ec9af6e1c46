"""Items of queues as what agents take: bytes, or the facts of a shared object; and back.

A body is [form, bytes, facts of the object, facts of objects to which the value has references]. The agent looks at
none of it; which objects it is to hold for the item it is told beside.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from monarch_async.mesh.domain import Domain
from monarch_async.mesh.holding import Keeper, ObjectFacts
from monarch_async.mesh.ref import dumps_apart
from monarch_async.wire.object_layout import Laid, cut_object, lay_out
from monarch_async.wire.payload import loads

_SKELETON, _LAID, _OBJECT = range(3)


@dataclass(frozen=True, slots=True)
class Parcel:
    """One item on its way in. ``nbytes`` is what it counts; ``laid`` is there where it becomes a shared object."""

    form: int
    data: bytes
    nbytes: int
    laid: Laid | None
    inner: Sequence[Keeper]

    @property
    def body(self) -> list[Any] | None:
        """What the agent takes at once; None where there are shared objects that it has to hold first."""
        return None if self.laid is not None or self.inner else [self.form, self.data, None, []]

    async def store(self, domain: Domain) -> tuple[list[Any], list[list[Any]], list[Keeper]]:
        """Put what is large into this host's store.

        Returns the body, [id, home, bytes] of what is to be held for it, and what holds that until then. Raises
        StoreFull.
        """
        kept = list(dict.fromkeys(keeper for inner in self.inner for keeper in inner.reach()))
        said = [astuple(keeper.holding.facts) for keeper in kept]
        facts = None
        if self.laid is not None:
            keeper = await domain.holdings.put(self.laid, domain.name_of, self.inner)
            facts = astuple(keeper.holding.facts)
            kept.insert(0, keeper)
        objects = [[k.holding.facts.id, k.holding.facts.home, k.holding.facts.nbytes] for k in kept]
        return [self.form, self.data, facts, said], objects, kept


def pack(domain: Domain, value: object, what: str) -> Parcel:
    """Pickle an item, called ``what`` in errors. Raises PicklingError."""
    encoded, inner = dumps_apart(value, domain, what)
    large = domain.router.config.large
    if not encoded.buffers and len(encoded.skeleton) <= large:
        return Parcel(_SKELETON, encoded.skeleton, len(encoded.skeleton), None, inner)
    laid = lay_out(encoded)
    if laid.size <= large:
        return Parcel(_LAID, _joined(laid), laid.size, None, inner)
    return Parcel(_OBJECT, b"", laid.size, laid, inner)


async def unpack(domain: Domain, body: Sequence[Any]) -> object:
    """Return the value; by then this process holds what it refers to. What can be written to can be written to here.

    Raises ObjectLost where the host is lost that an item was put on, and whatever unpickling raises.
    """
    form, data, facts, said = body
    if form == _SKELETON:
        value = loads(data)
    elif form == _LAID:
        value = loads(*cut_object(memoryview(bytearray(data))))
    else:
        value = await domain.holdings.load(domain.holdings.keep(ObjectFacts(*facts)), loads=loads)
    for inner in said:  # unpickled references hold them, or nothing needs them
        await domain.holdings.keep(ObjectFacts(*inner)).wait_held()
    return value


def _joined(laid: Laid) -> bytes:
    memory = bytearray(laid.size)
    for part, (offset, size) in zip(laid.parts, laid.runs, strict=True):
        memory[offset : offset + size] = part
    return bytes(memory)
