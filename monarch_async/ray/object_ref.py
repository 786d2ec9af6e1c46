"""References to objects: what every call of the facade returns."""

import asyncio
import concurrent.futures
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from monarch_async.mesh.domain import find_domain
from monarch_async.mesh.ref_tickets import LEASE, RefTicket
from monarch_async.ray.context import lending
from monarch_async.ray.entry import Entry, load_on_loop
from monarch_async.ray.entry import load as load_here
from monarch_async.ray.payload import holder, inside
from monarch_async.wire.ticket import collector

T = TypeVar("T")


class ObjectRef(Generic[T]):
    """A reference to an object that is there, or will be. ``ray.get(ref)``, or ``await ref`` in a coroutine.

    Equal to others of the same object; pickles, also inside of other values. The object lives as long as there is a
    reference anywhere.
    """

    __slots__ = ("__weakref__", "_entry")

    def __init__(self, entry: Entry) -> None:
        """Made by the facade."""
        self._entry = entry

    def hex(self) -> str:
        """Return its id, as text."""
        return f"{self._entry.owner:024x}{self._entry.number:032x}"

    def binary(self) -> bytes:
        """Return its id."""
        return bytes.fromhex(self.hex())

    def is_nil(self) -> bool:
        """Return whether it refers to nothing: never."""
        return False

    def future(self) -> "concurrent.futures.Future[T]":
        """Return a future of the value, for threads."""
        entry = self._entry
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        async def load() -> None:
            try:
                value = await load_on_loop(entry)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        def done() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if not entry.runtime.is_over:
                entry.runtime.post(entry.runtime.start, load())
                return
            try:  # there is no loop any more
                value = load_here(entry)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        if not entry.when_done(done):
            done()
        return future

    def as_future(self) -> "asyncio.Future[T]":
        """Return a future of the value, for the running loop."""
        return asyncio.wrap_future(self.future())

    def __await__(self) -> Generator[Any, None, T]:
        return self._load().__await__()

    async def _load(self) -> Any:
        entry = self._entry
        if asyncio.get_running_loop() is not entry.runtime.loop:
            return await asyncio.wrap_future(self.future())
        if not entry.is_done:
            done = asyncio.Event()
            if entry.when_done(done.set):
                try:
                    with lending():
                        await done.wait()
                finally:
                    entry.forget(done.set)
        return await load_on_loop(entry)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectRef):
            return NotImplemented
        mine, its = self._entry, other._entry
        return mine is its or (mine.number == its.number and mine.owner == its.owner)

    def __hash__(self) -> int:
        return hash(self._entry.number)

    def __copy__(self) -> "ObjectRef[T]":
        return self

    def __deepcopy__(self, memo: object) -> "ObjectRef[T]":
        return self

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        entry = self._entry
        said = (entry.owner, entry.number)
        entry.runtime.borrowing.publish(entry)
        refs = inside.get()
        if refs is not None:
            refs.append(self)
            return _arrive, said
        domain = find_domain()
        if domain is None:
            return _arrive, said
        ticket = RefTicket(domain.holdings.tickets, entry)  # type: ignore[arg-type]  # it keeps it, no more
        tickets = collector.get()
        if tickets is None:
            domain.holdings.tickets.add(ticket, LEASE)
        else:
            tickets.append(ticket)
        return _arrive, (*said, domain.router.address, ticket.number)


def _arrive(owner: int, number: int, issuer: int = 0, ticket: int = 0) -> ObjectRef[Any]:
    """Unpickle a reference. On any thread."""
    from monarch_async.ray.runtime import current

    runtime = current()
    entry = runtime.borrowing.borrow(owner, number, holder.get())
    if issuer:
        runtime.domain.holdings.tickets.arrived(entry, issuer, ticket)  # type: ignore[arg-type]
    return ObjectRef(entry)


def is_ref(value: object) -> bool:
    """Return whether it is a reference."""
    return type(value) is ObjectRef
