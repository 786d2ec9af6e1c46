"""How the memory of devices is reached: an owner's by way of its pinned memory (`device`), one's own by copying.

`PinnedTransport` stands on a transport for memory, which moves the lanes. Memory of a device at *this* end is none of a
transport's business: `to_device` and `from_device` move it piece by piece, by way of pinned memory here.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from monarch_async.bulk.device import LANE_BYTES, LANES, DeviceMemory, check_runs, copy_runs, device_of
from monarch_async.bulk.errands import Errands, Link
from monarch_async.bulk.grant import find_writable
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.transport import Progress, Run, Transport
from monarch_async.errors import BufferMismatch

#: Runs in one piece at most.
_MOST_RUNS = 4096

#: Moves runs of a region to or from memory of this machine.
Move = Callable[[Sequence[Run], Sequence[memoryview]], Awaitable[None]]


class PinnedTransport:
    """A transport for regions of devices, on top of one for memory. On the plane's loop."""

    def __init__(self, link: Link, inner: Transport) -> None:
        """``link`` reaches the owner's plane, ``inner`` its memory. Both stay the caller's."""
        self.name = f"{inner.name}, through pinned memory of its owner"
        self._link, self._inner = link, inner
        self._errands = Errands()
        self._lanes: asyncio.LifoQueue[tuple[int, RemoteRegion] | None] = asyncio.LifoQueue()  # None: yet to open
        for _ in range(LANES):
            self._lanes.put_nowait(None)

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""

        async def move(number: int, lane: RemoteRegion, piece: list[Run], views: list[memoryview], size: int) -> None:
            await self._link.ask("device_fill", number, region.id, region.stamp, piece)
            await self._inner.read(lane, [(0, size)], views, progress)

        await self._move(region, runs, into, move)

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""

        async def move(number: int, lane: RemoteRegion, piece: list[Run], views: list[memoryview], size: int) -> None:
            await self._inner.write(lane, [(0, size)], views, progress)
            await self._link.ask("device_drain", number, region.id, region.stamp, piece)

        await self._move(region, runs, source, move)

    async def _move(
        self,
        region: RemoteRegion,
        runs: Sequence[Run],
        views: Sequence[memoryview],
        move: Callable[[int, RemoteRegion, list[Run], list[memoryview], int], Awaitable[None]],
    ) -> None:
        memory = Pieces(views)
        todo = cut_pieces(runs)
        start = 0

        async def carry() -> None:
            nonlocal start
            lane = await self._lanes.get()
            is_free = True  # one that was given up in the middle may still be filled: it is not used again
            try:
                for piece in todo:
                    size = sum(length for _, length in piece)
                    here, start = memory.cut(start, start + size), start + size
                    is_free = False
                    if lane is None:
                        lane = await self._open_lane(region)
                    await move(*lane, piece, here, size)
                    is_free = True
            finally:
                self._lanes.put_nowait(lane if is_free else None)
                if lane is not None and not is_free:
                    self._errands.start(self._link.ask("device_close", lane[0]))

        carriers = [asyncio.ensure_future(carry()) for _ in range(LANES)]
        try:
            await asyncio.gather(*carriers)
        finally:
            for carrier in carriers:
                carrier.cancel()
            await _wait_ended(carriers)

    async def _open_lane(self, region: RemoteRegion) -> tuple[int, RemoteRegion]:
        number, description = await self._link.ask("device_lane", region.id, region.stamp)
        return number, RemoteRegion.unpack(description)

    async def aclose(self) -> None:
        """See `transport.Transport`. Its lanes go with the connection, if not before."""
        while not self._lanes.empty():
            lane = self._lanes.get_nowait()
            if lane is not None and self._link.is_open:
                self._errands.start(self._link.ask("device_close", lane[0]))
        await self._errands.aclose()


class OwnDevice:
    """A transport for this process's own regions of devices."""

    name = "local"

    def __init__(self, regions: Regions) -> None:
        """Copy to and from ``regions``."""
        self._regions = regions

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        own = self._regions.find(region.id, region.stamp)
        await self._copy(own, region, runs, into, device_of(own).copy_out, progress)

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        own = find_writable(self._regions, region.id, region.stamp)
        await self._copy(own, region, runs, source, device_of(own).copy_in, progress)

    async def _copy(
        self,
        own: Region,
        region: RemoteRegion,
        runs: Sequence[Run],
        views: Sequence[memoryview],
        copy: Callable[[int, memoryview], None],
        progress: Progress,
    ) -> None:
        check_runs(runs, device_of(own).size)
        memory, start = Pieces(views), 0
        own.enter()
        try:
            for piece in cut_pieces(runs):
                self._regions.find(region.id, region.stamp)
                size = sum(length for _, length in piece)
                async with _copying(copy, piece, memory.cut(start, start + size)):
                    pass
                start += size
                progress(size)
            self._regions.find(region.id, region.stamp)
        finally:
            own.leave()

    async def aclose(self) -> None:
        """Nothing is held."""


async def _wait_ended(tasks: Sequence["asyncio.Future[None]"]) -> None:
    """Wait until they have ended, however often this is cancelled: they use the caller's memory."""
    is_cancelled = False
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            is_cancelled = True
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at
    if is_cancelled:
        raise asyncio.CancelledError


def cut_pieces(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield ``runs`` in pieces that fit a lane."""
    piece, size = list[Run](), 0
    for offset, length in runs:
        while length:
            count = min(length, LANE_BYTES - size)
            piece.append((offset, count))
            size, offset, length = size + count, offset + count, length - count
            if size == LANE_BYTES or len(piece) == _MOST_RUNS:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece


async def to_device(read: Move, runs: Sequence[Run], memory: DeviceMemory) -> None:
    """Read runs of a region to memory of a device here, as large as they are.

    ``read`` reads some of them to memory of this machine: `plane.DataPlane.read` of the region, say. A piece is copied
    to the device while the next one is read. Raises BufferMismatch where they are of another size, and what ``read``
    does. The memory is left alone once this has ended.
    """
    blocks, start = await _allocate(runs, memory), 0
    async with contextlib.AsyncExitStack() as copying:
        for piece, block in zip(cut_pieces(runs), itertools.cycle(blocks), strict=False):
            view = block[: sum(length for _, length in piece)]
            await read(piece, [view])
            await copying.aclose()
            await copying.enter_async_context(_copying(memory.copy_in, [(start, len(view))], [view]))
            start += len(view)


async def from_device(write: Move, runs: Sequence[Run], memory: DeviceMemory) -> None:
    """Write memory of a device here to runs of a region; as `to_device`."""
    blocks, start = await _allocate(runs, memory), 0
    ready: tuple[list[Run], memoryview] | None = None
    for piece, block in zip(cut_pieces(runs), itertools.cycle(blocks), strict=False):
        view = block[: sum(length for _, length in piece)]
        async with _copying(memory.copy_out, [(start, len(view))], [view]):
            if ready is not None:
                await write(ready[0], [ready[1]])
        start, ready = start + len(view), (piece, view)
    if ready is not None:
        await write(ready[0], [ready[1]])


async def _allocate(runs: Sequence[Run], memory: DeviceMemory) -> list[memoryview]:
    """Return memory for the pieces of runs: one is used while the other one is copied."""
    total = sum(length for _, length in runs)
    if total != memory.size:
        raise BufferMismatch("memory of a device", f"{total} bytes do not fit its {memory.size}")
    is_one = total <= LANE_BYTES and len(runs) < _MOST_RUNS
    return [await asyncio.to_thread(memory.allocate, min(LANE_BYTES, total)) for _ in range(1 if is_one else LANES)]


@contextlib.asynccontextmanager
async def _copying(
    copy: Callable[[int, memoryview], None], runs: Sequence[Run], views: Sequence[memoryview]
) -> AsyncIterator[None]:
    """Copy on a thread during this block, which ends with that, however it ends."""
    copying = copy_runs(copy, runs, views)
    try:
        yield
    finally:
        await _wait_ended([copying])
    copying.result()
