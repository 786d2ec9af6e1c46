"""Shared objects: values that are put once and read from anywhere.

    ref = await ma.put(value)                     # one copy, in the memory of this host
    value = await ref                             # in any proc, as often as wanted; no copy where it is on this host
    done, pending = await ma.wait(refs, count=1)  # which are on this host?

A `Ref` is small and pickles: as an argument, a result, an item of a stream, inside of other values and of other shared
objects. The object lives while any process has a reference, or the value; then it goes, wherever it is, also where the
last one crashes. Every host keeps one copy at most, which all its procs map.

A shared object cannot be changed. Arrays and buffers of 2 KiB and more are read-only views of the one copy. Tensors
know no such thing: who writes into one gets the pages it writes to for itself, and nobody else sees it. (``bytes`` are
Python's own, and are copied.)
"""

import asyncio
from collections.abc import Generator, Iterable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from monarch_async.errors import BadCall, Closed, ForeignHandle
from monarch_async.mesh.domain import Domain, active_domain, find_domain
from monarch_async.mesh.holding import Keeper, ObjectFacts
from monarch_async.mesh.ref_tickets import LEASE, RefTicket
from monarch_async.wire.object_layout import lay_out
from monarch_async.wire.payload import Encoded, dumps
from monarch_async.wire.ticket import collector

T = TypeVar("T")

#: References in the value that is being put: the object's own, so they need no ticket.
_inner: ContextVar[list["Ref[Any]"] | None] = ContextVar("monarch_async_inner_refs", default=None)


class Ref(Generic[T]):
    """A reference to a shared object, made by `put`. ``await ref`` is its value. Equal to others of the same object.

    Awaiting it raises ObjectLost where no copy is left, StoreFull where it is larger than this host may keep,
    ForeignHandle for an object of another cluster, and Closed where this program has no hosts.
    """

    __slots__ = ("__weakref__", "_cluster", "_facts", "_keeper")

    def __init__(self, facts: ObjectFacts, cluster: bytes, keeper: Keeper | None) -> None:
        """Made by `put`. Without ``keeper`` it keeps nothing: unpickled where there are no hosts, or others."""
        self._facts, self._cluster, self._keeper = facts, cluster, keeper

    @property
    def nbytes(self) -> int:
        """Bytes that the object takes on each host that has a copy."""
        return self._facts.nbytes

    @property
    def home(self) -> int:
        """The address of the agent of the host that it was put on."""
        return self._facts.home

    def __await__(self) -> Generator[Any, None, T]:
        return self._load().__await__()

    async def _load(self) -> T:
        domain = active_domain()
        return await domain.holdings.load(self.keep(domain))  # type: ignore[return-value]

    def keep(self, domain: Domain) -> Keeper:
        """Return what keeps the object in ``domain``. Raises ForeignHandle."""
        if self._cluster != domain.router.plane.cluster:
            raise ForeignHandle(str(self._facts), "it belongs to another cluster, or to an earlier one of this program")
        if self._keeper is None:
            self._keeper = domain.holdings.keep(self._facts)
        return self._keeper

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self._facts.id == other._facts.id

    def __hash__(self) -> int:
        return hash(self._facts.id)

    def __copy__(self) -> "Ref[T]":
        return self

    def __deepcopy__(self, memo: object) -> "Ref[T]":
        return self

    def __repr__(self) -> str:
        facts = self._facts
        return f"<Ref {facts.id.hex()[:8]}: {facts.nbytes:,} bytes, home {facts.where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        facts, keeper = self._facts, self._keeper
        said = (facts.id, facts.home, facts.nbytes, facts.where)
        domain = find_domain()
        if keeper is None or domain is None or domain.router.plane.cluster != self._cluster:
            return _arrive, (said, self._cluster)
        inner = _inner.get()
        if inner is not None:
            inner.append(self)
            return _arrive, (said, self._cluster, _said_of(keeper))
        ticket = RefTicket(domain.holdings.tickets, keeper)
        tickets = collector.get()
        if tickets is None:
            domain.holdings.tickets.add(ticket, LEASE)
        else:
            tickets.append(ticket)
        return _arrive, (said, self._cluster, _said_of(keeper), domain.router.address, ticket.number)


def _said_of(keeper: Keeper) -> tuple[Any, ...]:
    """Return what is said of the objects to which a value has references, and to which those have some: facts and, by
    their indices, what it has references to, of each, these first; and which are the value's own."""
    said: list[tuple[Any, ...]] = []
    index: dict[Keeper, int] = {}
    for inner in keeper.reach():
        if inner is not keeper:
            f = inner.holding.facts
            index[inner] = len(said)
            said.append((f.id, f.home, f.nbytes, f.where, tuple([index[child] for child in inner.inner])))
    return tuple(said), tuple([index[child] for child in keeper.inner])


def _keep_inner(domain: Domain, said: Iterable[Any], own: Iterable[int]) -> list[Keeper]:
    kept: list[Keeper] = []
    for *facts, inner in said:
        kept.append(domain.holdings.keep(ObjectFacts(*facts), [kept[index] for index in inner]))
    return [kept[index] for index in own]


def _arrive(
    said: tuple[bytes, int, int, str],
    cluster: bytes,
    inner: tuple[Any, ...] = ((), ()),
    issuer: int = 0,
    ticket: int = 0,
) -> Ref[Any]:
    """Unpickle a reference; see `ref_tickets`. On any thread."""
    facts = ObjectFacts(*said)
    domain = find_domain()
    if domain is None or domain.router.plane.cluster != cluster:
        return Ref(facts, cluster, None)
    try:
        keeper = domain.holdings.keep(facts, _keep_inner(domain, *inner))
    except Closed:  # it has no host any more
        return Ref(facts, cluster, None)
    if issuer:
        domain.holdings.tickets.arrived(keeper, issuer, ticket)
    return Ref(facts, cluster, keeper)


async def put(value: T) -> Ref[T]:
    """Copy a value into the memory of this host, as an immutable shared object, and return the reference to it.

    Takes whatever pickles. Do not change the value before this returns. Where the host keeps as much as it may
    (``store_bytes``) it waits until other objects go; cancelling ends that.

    Raises StoreFull where the value is larger than the host may keep in all, PicklingError naming the part that does
    not pickle, and Closed where this program has no hosts.
    """
    domain = active_domain()
    encoded, inner = dumps_apart(value, domain)
    keeper = await domain.holdings.put(lay_out(encoded), domain.name_of, inner)
    return Ref(keeper.holding.facts, domain.router.plane.cluster, keeper)


def dumps_apart(value: object, domain: Domain, what: str = "value") -> tuple[Encoded, list[Keeper]]:
    """Pickle a value that whoever unpickles it need not answer for; return it, and what keeps the objects it refers to.

    Who stores it holds those as long as it does. ``what`` and what is raised are as of `dumps`.
    """
    inner: list[Ref[Any]] = []
    token = _inner.set(inner)
    try:
        encoded = dumps(value, what)
    finally:
        _inner.reset(token)
    return encoded, list({ref: ref.keep(domain) for ref in inner}.values())


async def wait(
    refs: Iterable[Ref[T]], count: int | None = None, timeout: float | None = None
) -> tuple[list[Ref[T]], list[Ref[T]]]:
    """Wait until the objects are on this host, fetching those that are not; return (those that are, the others).

    Args:
        refs: each once; the order of those that are not there is kept, those that are come as they have come.
        count: return when so many are there (there may be more by then); None: all.
        timeout: return after so many seconds in any case. None: wait.

    An object that is lost counts as being there: awaiting it says why. Raises BadCall for another ``count`` than from 1
    to the number of references, and for one that is given twice; ForeignHandle.
    """
    waiting = _checked(refs)
    if count is not None and not (isinstance(count, int) and 1 <= count <= len(waiting)):
        raise BadCall("wait", f"count={count!r} of {len(waiting)} references")
    domain = active_domain()
    keepers = [ref.keep(domain) for ref in waiting]
    fetches: dict[asyncio.Future[None], Ref[T]] = {
        asyncio.ensure_future(domain.holdings.fetch(keeper)): ref
        for keeper, ref in zip(keepers, waiting, strict=True)
    }
    done: list[Ref[T]] = []
    enough = asyncio.Event()

    def came(fetch: asyncio.Future[None]) -> None:
        if not fetch.cancelled():
            fetch.exception()  # looked at: who awaits it is told
            done.append(fetches[fetch])
            if len(done) >= (len(waiting) if count is None else count):
                enough.set()

    for fetch in fetches:
        fetch.add_done_callback(came)
    try:
        async with asyncio.timeout(timeout):
            if fetches:
                await enough.wait()
    except TimeoutError:
        pass
    finally:
        for fetch in fetches:
            fetch.cancel()  # the host goes on with it
    came_already = set(done)
    return list(done), [ref for ref in waiting if ref not in came_already]


def _checked(refs: object) -> list[Ref[Any]]:
    if not isinstance(refs, Iterable):
        raise BadCall("wait", f"it takes several references, such as a list of them, not a {type(refs).__qualname__}")
    waiting = list(refs)
    for index, ref in enumerate(waiting):
        if not isinstance(ref, Ref):
            raise BadCall("wait", f"refs[{index}] is no reference made by put, but a {type(ref).__qualname__}")
    if len(set(waiting)) < len(waiting):
        raise BadCall("wait", "the same reference is given twice")
    return waiting
