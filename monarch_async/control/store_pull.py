"""Getting a copy of a shared object from another host: piece by piece, from whoever has it.

A source may itself still be getting it: that is what a chain of hosts is, each of which reads from the one before.
The copy is read in pieces; who reads from here asks which have arrived (`wait_arrived`), so that any transport will do.
Where a source ends, or has lost its own, the next one is asked for what is missing.
"""

import asyncio
from collections.abc import Callable, Sequence

from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.plane import DataPlane
from monarch_async.bulk.region import RemoteRegion
from monarch_async.control.inquiries import Inquiries
from monarch_async.control.store_memory import Memory
from monarch_async.control.store_stock import name_of
from monarch_async.errors import Error, HostLost, ObjectLost, TransferBroken

#: Bytes of a piece, and how many are on their way at a time.
PIECE = 8 << 20
_PIECES = 4


class PullFrom:
    """One object, which comes to one host."""

    def __init__(self, id: bytes, nbytes: int, memory: Memory, plane: DataPlane, inquiries: Inquiries) -> None:
        """``memory`` is where it goes; its arrivals say what is there."""
        assert memory.arrivals is not None
        self._id, self._nbytes, self._memory = id, nbytes, memory
        self._arrivals: Arrivals = memory.arrivals
        self._plane, self._inquiries = plane, inquiries

    async def run(self, sources: Sequence[int], depend: Callable[[int, "asyncio.Task[None]"], None]) -> None:
        """Get all of it. Raises ObjectLost saying why none of the sources could give it."""
        reasons: list[str] = []
        for source in sources:
            reading = asyncio.get_running_loop().create_task(self._read(source))
            depend(source, reading)
            try:
                await asyncio.wait([reading])
            finally:
                if not reading.done():  # this is cancelled: nothing may touch the memory any more
                    reading.cancel()
                    await asyncio.wait([reading])
            error = HostLost("a source", "it was lost") if reading.cancelled() else reading.exception()
            if error is None:
                return
            if not isinstance(error, Error | OSError):
                raise error
            reasons.append(str(error))
        raise ObjectLost(name_of(self._id), "; ".join(dict.fromkeys(reasons)) or "nobody has it")

    async def _read(self, source: int) -> None:
        try:
            answer = await self._inquiries.ask(source, "store", "where", self._id)
            region = RemoteRegion.unpack(answer["region"])
            if region.size != self._nbytes:
                raise TransferBroken(name_of(self._id), f"it has {region.size} bytes there, not {self._nbytes}")
            there = self._nbytes if answer["is_complete"] else 0
            while missing := self._arrivals.missing():
                start = missing[0][0]
                if there <= start:
                    there = await self._inquiries.ask(source, "store", "arrived", self._id, start)
                await self._read_runs(region, [(a, min(b, there)) for a, b in missing if a < there])
        finally:
            self._inquiries.post(source, "store", "close", self._id)

    async def _read_runs(self, region: RemoteRegion, ranges: Sequence[tuple[int, int]]) -> None:
        """Read bytes, some pieces at a time."""
        pieces = [(at, min(at + PIECE, stop)) for start, stop in ranges for at in range(start, stop, PIECE)]
        turns = asyncio.Semaphore(_PIECES)
        try:
            async with asyncio.TaskGroup() as group:
                for start, stop in pieces:
                    await turns.acquire()
                    group.create_task(self._read_piece(region, start, stop)).add_done_callback(
                        lambda _: turns.release()
                    )
        except BaseExceptionGroup as errors:  # one is enough to say why
            raise errors.exceptions[0] from None

    async def _read_piece(self, region: RemoteRegion, start: int, stop: int) -> None:
        await self._plane.read(region, [(start, stop - start)], [self._memory.segment.view[start:stop]])
        self._arrivals.add(start, stop)
        self._memory.tell()


async def wait_arrived(memory: Memory, start: int) -> int:
    """Wait until the bytes at ``start`` are there; return up to where all are. Raises ObjectLost where none will be."""
    while memory.arrivals is not None:
        until = next((begin for begin, _ in memory.arrivals.missing(start)), memory.arrivals.size)
        if until > start:
            return until
        if memory.is_gone:
            raise ObjectLost("a shared object", "this host could not get it either")
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        memory.told.append(waits)
        await waits
    return memory.segment.size
