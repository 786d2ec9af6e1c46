"""The memory of devices, read and written by others through pinned memory of its owner's, piece by piece.

For devices whose memory UCX does not move itself (`ucx_worker.UcxWorker.has_cuda`; where it does, a region has keys for
it and none of this is used). The owner lends a reader *lanes*: pinned blocks, registered like any memory, so that every
transport reaches them. A piece is copied to a lane, read from there while the next one is copied to another lane, and
so on; a writer goes the other way round.

What is known of devices is given in (`DeviceMemory`): this floor imports no torch. A region of a device has no spans at
its owner, so whoever takes it for ordinary memory is refused, and ``device`` in its description says which it is.

D1. A lane belongs to one piece at a time, and to one peer; it goes with the peer's connection.
D2. A piece is good where the region's stamp was the handle's before and after it was copied, which `R1` says of reads.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from monarch_async.bulk.errands import Errands, Link, Operation, Peer
from monarch_async.bulk.grant import find_writable
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.transport import Progress, Run, Transport
from monarch_async.errors import BadFrame, BufferMismatch

#: Bytes of a lane, and how many a peer has.
LANE_BYTES, LANES = 8 << 20, 2

#: Runs in one piece at most.
_MOST_RUNS = 4096


class DeviceMemory(Protocol):
    """Contiguous memory of a device. Made by whoever knows the device, and kept as a region's ``keep``.

    With torch: ``allocate`` is ``torch.empty(size, dtype=torch.uint8, pin_memory=True)``, seen by way of numpy; the
    copies are ``Tensor.copy_(..., non_blocking=True)`` between that and the flat bytes of the tensor, on a stream of
    their own that first waits for the stream the tensor was written on, and then ``Event.synchronize``.
    """

    @property
    def device(self) -> str:
        """Such as ``"cuda:0"``."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def address(self) -> int:
        """Where it is, for UCX that moves the memory of devices; others never follow it."""
        ...

    def allocate(self, size: int) -> memoryview:
        """Return memory of this machine that the device copies to and from at full speed; freed with its last view."""
        ...

    def copy_out(self, offset: int, into: memoryview) -> None:
        """Copy bytes from the device; they are there when this returns. Called on any thread, several at once."""
        ...

    def copy_in(self, offset: int, source: memoryview) -> None:
        """Copy bytes to the device; as `copy_out`."""
        ...


#: Registers memory of this machine for others: (its region, what describes it). `plane.DataPlane.add` does.
Add = Callable[[Sequence[memoryview], bool], Awaitable[tuple[Region, RemoteRegion]]]
#: Lets go of it; returns when nobody uses it. `plane.DataPlane.remove` does.
Remove = Callable[[Region], Awaitable[None]]


def describe_device(remote: RemoteRegion, memory: DeviceMemory) -> RemoteRegion:
    """Return what describes a region of a device, given what describes its region without spans."""
    return replace(remote, spans=((memory.address, memory.size),), device=memory.device)


@dataclass(slots=True)
class _Lane:
    memory: memoryview
    region: Region


class DeviceLanes:
    """The owner's side. On the plane's loop."""

    def __init__(self, regions: Regions, add: Add, remove: Remove) -> None:
        """``add`` and ``remove`` register and let go of lanes."""
        self._regions, self._add, self._remove = regions, add, remove
        self._numbers = itertools.count(1)
        self._lanes: dict[object, dict[int, _Lane]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def operations(self) -> dict[str, Operation]:
        """Return what peers may ask for.

        ``device_lane id stamp`` -> [number, description]: a lane for that region's device. ``device_fill number id
        stamp runs``: copy those runs to the lane. ``device_drain number id stamp runs``: copy the lane to those runs.
        ``device_close number``.
        """
        return {
            "device_lane": self._open,
            "device_fill": self._fill,
            "device_drain": self._drain,
            "device_close": self._close,
        }

    async def _open(self, client: Peer, arguments: list[Any]) -> tuple[int, bytes]:
        id, stamp = arguments
        memory = _device_of(self._regions.find(id, stamp)).allocate(LANE_BYTES)
        lanes = self._lanes.get(client)
        if lanes is None:
            lanes = self._lanes[client] = {}
            client.on_gone(partial(self._gone, client))
        region, remote = await self._add([memory], True)
        number = next(self._numbers)
        if self._lanes.get(client) is not lanes:  # it went meanwhile
            await self._remove(region)
            raise BadFrame("a lane for a connection that has ended")
        lanes[number] = _Lane(memory, region)
        return number, remote.pack()

    async def _fill(self, client: Peer, arguments: list[Any]) -> None:
        number, id, stamp, runs = arguments
        region = self._regions.find(id, stamp)
        await self._copy(client, number, region, runs, _device_of(region).copy_out)
        self._regions.find(id, stamp)

    async def _drain(self, client: Peer, arguments: list[Any]) -> None:
        number, id, stamp, runs = arguments
        region = find_writable(self._regions, id, stamp)
        await self._copy(client, number, region, runs, _device_of(region).copy_in)

    async def _copy(
        self,
        client: Peer,
        number: int,
        region: Region,
        runs: Sequence[Run],
        copy: Callable[[int, memoryview], None],
    ) -> None:
        lane = self._lanes.get(client, {}).get(number)
        size = _device_of(region).size
        if lane is None or sum(length for _, length in runs) > len(lane.memory):
            raise BadFrame("a piece for no lane, or a larger one than fits it")
        if any(offset < 0 or length < 0 or offset + length > size for offset, length in runs):
            raise BadFrame(f"runs outside of a region of {size} bytes")

        def copy_all() -> None:
            start = 0
            for offset, length in runs:
                copy(offset, lane.memory[start : start + length])
                start += length

        region.enter()
        lane.region.enter()
        copying = asyncio.ensure_future(asyncio.to_thread(copy_all))
        copying.add_done_callback(lambda _: (region.leave(), lane.region.leave()))  # also where this is cancelled
        await asyncio.shield(copying)

    async def _close(self, client: Peer, arguments: list[Any]) -> None:
        lane = self._lanes.get(client, {}).pop(arguments[0], None)
        if lane is not None:
            await self._remove(lane.region)

    def _gone(self, client: object) -> None:
        for lane in self._lanes.pop(client).values():
            closing = asyncio.get_running_loop().create_task(self._end(lane))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _end(self, lane: _Lane) -> None:
        await self._remove(lane.region)

    async def aclose(self) -> None:
        """Let go of all lanes. Twice is fine."""
        for client in list(self._lanes):
            self._gone(client)
            self._lanes[client] = {}
        while self._closing:
            await asyncio.wait(self._closing)


def _device_of(region: Region) -> DeviceMemory:
    memory = region.keep
    if region.spans or not hasattr(memory, "copy_out"):
        raise BadFrame("this region is no device's")
    return memory  # type: ignore[return-value]


class PinnedTransport:
    """A transport for regions of devices, on top of one for memory. On the plane's loop."""

    def __init__(self, link: Link, inner: Transport) -> None:
        """``link`` reaches the owner's plane, ``inner`` its memory. Both stay the caller's."""
        self.name = f"pinned memory, {inner.name}"
        self._link, self._inner = link, inner
        self._errands = Errands()
        self._lanes: dict[str, asyncio.LifoQueue[tuple[int, RemoteRegion] | None]] = {}  # by device; None: yet to open

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
        lanes = self._lanes.setdefault(region.device, _new_lanes())

        async def carry() -> None:
            nonlocal start
            lane = await lanes.get()
            is_free = False  # one that was given up in the middle may still be filled: it is not used again
            try:
                if lane is None:
                    lane = await self._open_lane(region)
                for piece in todo:
                    size = sum(length for _, length in piece)
                    here, start = memory.cut(start, start + size), start + size
                    await move(*lane, piece, here, size)
                is_free = True
            finally:
                lanes.put_nowait(lane if is_free else None)
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
        """See `transport.Transport`. Its lanes go."""
        for lanes in self._lanes.values():
            while not lanes.empty():
                lane = lanes.get_nowait()
                if lane is not None:
                    self._errands.start(self._link.ask("device_close", lane[0]))
        self._lanes.clear()
        await self._errands.aclose()


def _new_lanes() -> "asyncio.LifoQueue[tuple[int, RemoteRegion] | None]":
    lanes: asyncio.LifoQueue[tuple[int, RemoteRegion] | None] = asyncio.LifoQueue()
    for _ in range(LANES):
        lanes.put_nowait(None)
    return lanes


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


async def to_device(
    read: Callable[[Sequence[Run], Sequence[memoryview]], Awaitable[None]], runs: Sequence[Run], memory: DeviceMemory
) -> None:
    """Read runs of a region to memory of a device here, as large as they are, by way of pinned memory.

    ``read`` reads some of them to memory of this machine: `plane.DataPlane.read` of the region, say.
    Raises BufferMismatch where they are of another size, and what ``read`` does.
    """
    total = sum(length for _, length in runs)
    if total != memory.size:
        raise BufferMismatch("memory of a device", f"{total} bytes do not fit its {memory.size}")
    blocks = [memory.allocate(min(LANE_BYTES, total)) for _ in range(LANES if total > LANE_BYTES else 1)]
    copying: asyncio.Future[None] | None = None
    start = 0
    try:
        for index, piece in enumerate(cut_pieces(runs)):
            size = sum(length for _, length in piece)
            block = blocks[index % len(blocks)][:size]
            await read(piece, [block])
            if copying is not None:
                await asyncio.shield(copying)
            copying = asyncio.ensure_future(asyncio.to_thread(memory.copy_in, start, block))
            start += size
    finally:
        if copying is not None:
            await _wait_ended([copying])
    if copying is not None:
        copying.result()
