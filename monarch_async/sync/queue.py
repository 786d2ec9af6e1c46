"""Queues between processes."""

import asyncio
import contextlib
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Generic, TypeVar

from monarch_async.errors import Closed, Error
from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.runtime.report import load_report, pack_error, pack_raised
from monarch_async.sync.asked import Asked
from monarch_async.sync.parcel import Parcel, pack, unpack
from monarch_async.sync.reference import Reference, check_number, who_asks

T = TypeVar("T")


class Queue(Reference, Generic[T]):
    """Items from any processes to any others, each to one, in the order in which they were put.

        episodes = ma.Queue(maxsize=256)
        await episodes.put(episode)                 # waits while it is full
        async for episode in episodes: ...          # in as many places as there are consumers
        episodes.close()                            # items that are in it still come, then the end

    It holds ``maxsize`` items of together ``max_bytes`` bytes at most; who puts waits, first come, first served. Items
    of up to ``Config.large`` bytes are with its home's agent. Larger ones are shared objects in the memory of the host
    they were put on, which the queue holds until they are taken, also where who put them has ended.

    What `put` has returned for is in the queue, once; a `put` that was cancelled is in it or not. An item is handed out
    once: one that was on its way to a process that died is lost. Who is cancelled while it waits gets nothing, and the
    item stays in its place. Items put through one object of this class come in the order of the calls.

    A consumer sees every item and then the end (`get` raises Closed, iterating stops) or the failure, never an end
    because of a failure: see `fail` and `producing`. An item whose host is lost is ObjectLost, for who gets it.
    """

    __slots__ = ("_last",)
    _kind = "queue"

    def __init__(
        self,
        name: str | None = None,
        *,
        maxsize: int = 1024,
        max_bytes: int = 256 << 20,
        producers: int = 0,
        home: HostMesh | None = None,
    ) -> None:
        """Make a reference to a queue; nothing is sent.

        Args:
            name: the same one wherever this is written, with the same sizes; see `Lock`. Once closed it stays so, as
                long as the program runs.
            maxsize: items at most.
            max_bytes: bytes of pickled items at most.
            producers: close it when so many blocks of `producing` have been left in order. 0: only `close` does.
            home: as of `Lock`.

        Raises BadCall for a bad argument.
        """
        sizes = check_number("Queue", "maxsize", maxsize), check_number("Queue", "max_bytes", max_bytes)
        super().__init__(name, home, *sizes, check_number("Queue", "producers", producers, 0))
        self._last: asyncio.Future[None] | None = None  # ends with the put before

    def _refer(self, key: str, home: int, params: tuple[int, ...]) -> Any:
        self._last = None
        return super()._refer(key, home, params)

    # -- putting ---------------------------------------------------------------------------------------------------

    async def put(self, item: T) -> None:
        """Put an item in, once there is room.

        Raises PicklingError, Closed after `close` or a failure, BadCall where it is larger than ``max_bytes``, and
        StoreFull where it is larger than this host may keep.
        """
        await self._put(item, True)

    async def put_nowait(self, item: T) -> None:
        """Put an item in if there is room for it now; raises Backpressure where there is none. Else as `put`."""
        await self._put(item, False)

    async def _put(self, item: T, may_wait: bool) -> None:
        domain = active_domain()
        parcel = pack(domain, item, f"item put to {self.name}")
        asked = self._send("put", parcel.nbytes, parcel.body, may_wait)
        before, mine = self._last, domain.router.loop.create_future()
        self._last = mine
        try:
            if not await asked.outcome():
                await self._fill(asked, parcel, before, mine)
        finally:
            _end_after(mine, before)
            if self._last is mine and mine.done():
                self._last = None

    async def _fill(
        self, asked: Asked, parcel: Parcel, before: "asyncio.Future[None] | None", mine: "asyncio.Future[None]"
    ) -> None:
        """Room was granted to ``asked``: bring the item, when what was put ``before`` it is certain to come first."""
        try:
            body, objects, kept = await parcel.store(active_domain())
            if before is not None and not before.done():
                await asyncio.wait([before])
            filled = self._send("fill", asked.call, body, objects)
            if not objects:  # else the home may take what comes later first
                mine.set_result(None)
            await filled.outcome()
            del kept  # until now they were held here, too
        except BaseException:
            asked.withdraw()
            raise

    # -- getting ---------------------------------------------------------------------------------------------------

    async def get(self) -> T:
        """Wait for the next item and take it. Raises Closed at the end, and what the queue failed with."""
        return await self._get(True)

    async def get_nowait(self) -> T:
        """Take the next item, if there is one now; raises Empty where there is none. Else as `get`."""
        return await self._get(False)

    async def _get(self, may_wait: bool) -> T:
        asked = self._send("get", may_wait)
        answer = await asked.outcome()
        if isinstance(answer, dict):
            raise load_report(answer["report"])
        try:
            item = await unpack(active_domain(), answer[0])
        except asyncio.CancelledError:
            asked.withdraw()
            raise
        except Exception as error:
            error.add_note(f"raised while taking an item from {self.name}")
            self._post("took", asked.call)
            raise
        self._post("took", asked.call)
        return item  # type: ignore[return-value]

    def __aiter__(self) -> "Queue[T]":
        return self

    async def __anext__(self) -> T:
        """Take the next item. Stops at the end; raises what the queue failed with."""
        try:
            return await self.get()
        except Closed as error:
            if error.what != self.name:  # not the queue has ended, but this program
                raise
            raise StopAsyncIteration from None

    async def qsize(self) -> int:
        """Return how many items are in it now."""
        return (await self._ask("size"))[0]

    async def lost(self) -> int:
        """Return how many items were lost with the processes that were about to take them."""
        return (await self._ask("size"))[2]

    # -- ends ------------------------------------------------------------------------------------------------------

    def close(self) -> Awaitable[None]:
        """Take nothing more: `put` raises Closed, also where it waits. What is in it is handed out, then comes the end.

        Sent at once; await the result to know that it is closed. Twice is fine.
        """
        return self._send("close").unawaited()

    def fail(self, error: Exception) -> Awaitable[None]:
        """Take nothing more; after the items that are in it, all consumers get ``error``, as one of an endpoint.

        Sent at once; await the result to know that it is. The first failure counts; after a `close` whose end has been
        reached it changes nothing.
        """
        return self._send("fail", self._report(error)).unawaited()

    def producing(self) -> "Producing":
        """Return an ``async with`` block of one that puts items.

        What the block raises is what the queue fails with (and is raised); so is the death of the process. See
        ``producers`` for when it closes. Entering raises Closed after `close`.
        """
        return Producing(self)

    def _report(self, error: BaseException) -> bytes:
        domain = active_domain()
        who = who_asks(domain.router.name.removeprefix("proc "))
        if isinstance(error, Exception):
            host = domain.hosts[0].name if domain.hosts else ""
            return pack_raised(error, 0, {}, who, "producing", host)
        return pack_error(Error(f"{self.name}: {who}, which put items, was stopped by {type(error).__name__}"))


def _end_after(mine: "asyncio.Future[None]", before: "asyncio.Future[None] | None") -> None:
    """Let go who puts next; where this one was refused or cancelled it comes after those before all the same."""
    if before is None or before.done():
        if not mine.done():
            mine.set_result(None)
    elif not mine.done():
        before.add_done_callback(lambda _: mine.done() or mine.set_result(None))


class Producing:
    """See `Queue.producing`."""

    __slots__ = ("_joined", "_queue")
    _joined: Asked

    def __init__(self, queue: Queue[Any]) -> None:
        """Not entered yet."""
        self._queue = queue

    async def __aenter__(self) -> None:
        """Tell the queue. Raises Closed."""
        self._joined = self._queue._send("join")
        await self._joined.outcome()

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Tell the queue how it ended, without waiting."""
        with contextlib.suppress(Closed):  # this process has left its hosts, which is the end of all that is its own
            if error is not None:
                self._queue._post("fail", self._queue._report(error))
            self._queue._post("leave", self._joined.call)
