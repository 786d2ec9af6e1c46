"""The owner's side of the transport "memfd": copies pieces of regions into segments that others map, and out of theirs.

Pieces for one reader pass through *slots*, which the reader numbers: segments that stay mapped while they are used.

S1. A slot holds one piece at a time: the owner fills it again only when asked to, and the reader asks when it has
    copied the last one out, or gives up on it.
S2. The number of a slot is not used again once the owner was asked to clear it, so it does not matter in which order it
    hears of two things.
S3. Whose connection has ended may still be copying: the owner drops its segments, and uses them for nobody else.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from monarch_async.bulk.arena import Arena, Segment, Token, open_segment
from monarch_async.bulk.errands import Operation, Peer
from monarch_async.bulk.grant import find_writable
from monarch_async.bulk.memory import copy, pair
from monarch_async.bulk.region import Region, Regions
from monarch_async.bulk.transport import Run
from monarch_async.errors import BadFrame

#: Bytes, and runs, of a piece.
MOST_BYTES, MOST_RUNS = 8 << 20, 4096
#: Bytes copied before others have their turn.
SLICE = 2 << 20


async def copy_slices(
    into: Sequence[memoryview], source: Sequence[memoryview], look: Callable[[], object] | None = None
) -> None:
    """Copy, and let others have their turn every `SLICE` bytes. ``look`` is called after that, and may raise."""
    is_first = True
    for here, there in pair(into, source, SLICE):
        if not is_first:
            await asyncio.sleep(0)
            if look is not None:
                look()
        is_first = False
        copy(here, there)


def stage_operations(regions: Regions, arena: Arena) -> dict[str, Operation]:
    """Return what others may ask for: pieces, their clearing, and that theirs are collected."""
    stage = _Stage(regions, arena)
    return {"stage": stage.stage, "clear": stage.clear, "collect": stage.collect}


class _Slot:
    """Where pieces pass to one reader."""

    __slots__ = ("is_over", "lock", "segment")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.segment: Segment | None = None
        self.is_over = False  #: cleared while it was being filled


class _Stage:
    """All slots of all readers."""

    def __init__(self, regions: Regions, arena: Arena) -> None:
        self._regions, self._arena = regions, arena
        self._slots: dict[Peer, dict[int, _Slot]] = {}

    async def stage(self, client: Peer, arguments: list[Any]) -> Token:
        """``stage id stamp slot runs``: copy a piece into that slot's segment. Raises StaleHandle, TransferError."""
        id, stamp, number, runs = arguments
        size = _size_of(runs)
        slot = self._slot(client, number)
        async with slot.lock:
            try:
                region = self._regions.find(id, stamp)
                segment = self._fit(slot, size)
                await self._copy(region, stamp, [segment.view], tuple(region.cut(runs)))
                return segment.token
            finally:
                if slot.is_over and slot.segment is not None:
                    self._arena.give_back(slot.segment)
                    slot.segment = None

    async def clear(self, client: Peer, arguments: list[Any]) -> None:
        """``clear slots``: the reader is done with their segments."""
        (numbers,) = arguments
        slots = self._slots.get(client, {})
        for number in numbers:
            slot = slots.pop(number, None)
            if slot is None:
                continue
            slot.is_over = True
            if slot.segment is not None and not slot.lock.locked():
                self._arena.give_back(slot.segment)
                slot.segment = None

    async def collect(self, client: Peer, arguments: list[Any]) -> None:
        """``collect id stamp runs token``: copy a piece out of the writer's segment. Raises as `stage`."""
        id, stamp, runs, token = arguments
        size = _size_of(runs)
        region = find_writable(self._regions, id, stamp)
        into = tuple(region.cut(runs))
        source = open_segment(tuple(token), is_private=False, is_writable=False)
        if size > len(source):
            raise BadFrame(f"a piece of {size} bytes in a segment of {len(source)}")
        await self._copy(region, stamp, into, [source[:size]])

    async def _copy(
        self, region: Region, stamp: int, into: Sequence[memoryview], source: Sequence[memoryview]
    ) -> None:
        """Copy to or from a region that stays valid until all is done."""
        look = partial(self._regions.find, region.id, stamp)
        region.enter()
        try:
            await copy_slices(into, source, look)
            look()
        finally:
            region.leave()

    def _slot(self, client: Peer, number: int) -> _Slot:
        slots = self._slots.get(client)
        if slots is None:
            slots = self._slots[client] = {}
            client.on_gone(partial(self._gone, client))
        slot = slots.get(number)
        if slot is None:
            slot = slots[number] = _Slot()
        return slot

    def _fit(self, slot: _Slot, size: int) -> Segment:
        """Return the slot's segment, as large as need be."""
        if slot.segment is None or slot.segment.capacity < size:
            if slot.segment is not None:
                self._arena.give_back(slot.segment)
            slot.segment = None
            segment = self._arena.take(size)
            slot.segment = segment.resized(segment.capacity)
        return slot.segment

    def _gone(self, client: Peer) -> None:
        del self._slots[client]


def _size_of(runs: Iterable[Run]) -> int:
    """Return how many bytes a piece is. Raises BadFrame for one that nobody should ask for."""
    size = 0
    for offset, length in runs:
        if offset < 0 or length < 0:
            raise BadFrame(f"a run of {length} bytes at {offset}")
        size += length
    if size > MOST_BYTES:
        raise BadFrame(f"a piece of {size} bytes, more than {MOST_BYTES}")
    return size
