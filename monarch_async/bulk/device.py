"""The memory of devices, read and written by others through pinned memory of its owner's, piece by piece.

For devices whose memory UCX does not move itself (`ucx_worker.UcxWorker.has_cuda`; where it does, a region has keys for
it and none of this is used). The owner lends a reader *lanes*: pinned blocks, registered like any memory, so that every
transport reaches them. A piece is copied to a lane, read from there while the next one is copied to another lane, and
so on; a writer goes the other way round (`pinned`).

What is known of devices is given in (`DeviceMemory`): this floor imports no torch. A region of a device has no spans at
its owner, so whoever takes it for ordinary memory is refused, and ``device`` in its description says which it is.

D1. A lane belongs to one piece at a time, and to one peer; it goes with the peer's connection.
D2. A piece is good where the region's stamp was the handle's before and after it was copied, which `R1` says of reads.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from monarch_async.bulk.errands import Operation, Peer
from monarch_async.bulk.grant import find_writable
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.transport import Run
from monarch_async.errors import BadFrame, TransferError

#: Bytes of a lane, and how many a peer has.
LANE_BYTES, LANES = 8 << 20, 2


class DeviceMemory(Protocol):
    """Memory of a device, or of several and of this machine, end to end. Made by whoever knows devices."""

    @property
    def device(self) -> str:
        """Such as ``cuda:0``; several with commas between."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def places(self) -> Sequence[tuple[int, int, str]]:
        """(address, bytes, device) of each part, for UCX that moves the memory of devices; others never follow it."""
        ...

    def allocate(self, size: int) -> memoryview:
        """Return memory of this machine that the device copies to and from at full speed; freed with its last view.

        On any thread.
        """
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
        memory = await asyncio.to_thread(device_of(self._regions.find(id, stamp)).allocate, LANE_BYTES)
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
        await self._copy(client, number, region, runs, device_of(region).copy_out)
        self._regions.find(id, stamp)

    async def _drain(self, client: Peer, arguments: list[Any]) -> None:
        number, id, stamp, runs = arguments
        region = find_writable(self._regions, id, stamp)
        await self._copy(client, number, region, runs, device_of(region).copy_in)

    async def _copy(
        self,
        client: Peer,
        number: int,
        region: Region,
        runs: Sequence[Run],
        copy: Callable[[int, memoryview], None],
    ) -> None:
        lane = self._lanes.get(client, {}).get(number)
        if lane is None or sum(length for _, length in runs) > len(lane.memory):
            raise BadFrame("a piece for no lane, or a larger one than fits it")
        check_runs(runs, device_of(region).size)
        region.enter()
        lane.region.enter()
        copying = copy_runs(copy, runs, [lane.memory])
        copying.add_done_callback(partial(_leave, region, lane.region))  # also where this is cancelled
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


def _leave(region: Region, lane: Region, copying: "asyncio.Future[None]") -> None:
    region.leave()
    lane.leave()
    copying.exception()  # looked at: who asked may be gone


def device_of(region: Region) -> DeviceMemory:
    """Return the memory of a region of a device. Raises BadFrame where it is no such region."""
    if region.device is None:
        raise BadFrame("this region is no device's")
    return region.device


def copy_runs(
    copy: Callable[[int, memoryview], None], runs: Sequence[Run], views: Sequence[memoryview]
) -> "asyncio.Future[None]":
    """Call ``copy`` for each run and as many bytes of ``views``, on a thread. Its failure is a TransferError."""
    pieces = Pieces(views)

    def copy_all() -> None:
        start = 0
        for offset, length in runs:
            for view in pieces.cut(start, start + length):
                copy(offset, view)
                offset, start = offset + len(view), start + len(view)

    async def attempt() -> None:
        try:
            await asyncio.to_thread(copy_all)
        except RuntimeError as error:  # torch's, such as what CUDA says
            raise TransferError("memory of a device", f"copying failed: {error}") from error

    return asyncio.ensure_future(attempt())


def check_runs(runs: Sequence[Run], size: int) -> None:
    """Raise BadFrame where one is outside of a region of that size."""
    if any(offset < 0 or length < 0 or offset + length > size for offset, length in runs):
        raise BadFrame(f"runs outside of a region of {size} bytes")
