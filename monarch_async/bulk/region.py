"""Memory that other processes may read or write, and how they know that they still may.

R1. Each registration has a *stamp*, never used twice by a process, and a word in memory where that stamp stands while
    the registration is valid. A one-sided reader reads nonce, word, bytes and word again, in this order and in one go:
    the bytes are good where the nonce is the owner's and both words are the stamp of its handle.
R2. The word changes before the memory is let go of, so no reader takes for good what it read from memory used anew.
R3. Memory is not let go of while somebody writes to it, or sends from it: those `enter` and `leave`.
"""

import asyncio
import itertools
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.memory import address_of
from monarch_async.bulk.transport import Run
from monarch_async.errors import BadFrame, StaleHandle

if TYPE_CHECKING:
    from monarch_async.bulk.device import DeviceMemory

#: Bytes of a beacon page; the nonce is at the start of the first, the words begin behind it.
_PAGE = 64 << 10
_WORD = struct.Struct("<Q")
NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """A region, as its handle describes it to others."""

    endpoint: Endpoint
    id: int
    stamp: int
    word_at: int  #: where its stamp stands in the owner's memory (R1)
    spans: tuple[tuple[int, int], ...]  #: (address, bytes) of each, end to end
    is_writable: bool
    rkeys: tuple[bytes, ...] = ()  #: for UCX, one for each span, and one for the beacon page of the word
    what: str = "registered memory"  #: for errors
    device: str = ""  #: such as "cuda:0", where the spans are in that device's memory; see `device`

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(size for _, size in self.spans)

    def pack(self) -> bytes:
        """Return it as bytes."""
        fields = (self.id, self.stamp, self.word_at, self.spans, self.is_writable, self.rkeys, self.what, self.device)
        return msgpack.packb((self.endpoint.pack(), *fields))

    @staticmethod
    def unpack(data: bytes) -> "RemoteRegion":
        """Return it from bytes. Raises BadFrame."""
        try:
            endpoint, *fields = msgpack.unpackb(data, use_list=False)
            return RemoteRegion(Endpoint.unpack(endpoint), *fields)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise BadFrame(f"description of a region: {error}") from error


class Region:
    """A region, at its owner. Entered and left on the plane's loop only."""

    __slots__ = (
        "_drained", "device", "epoch", "first_stamp", "id", "is_writable", "keep", "rkeys", "spans", "stamp", "users",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        spans: Sequence[memoryview],
        is_writable: bool,
        keep: object,
        device: "DeviceMemory | None" = None,
    ) -> None:
        """``keep`` is whatever keeps the memory alive; ``spans`` are flat views of bytes, none where it is a device's.

        See `device` for what that is then.
        """
        self.id, self.spans, self.is_writable, self.keep = id, tuple(spans), is_writable, keep
        self.device = device
        self.stamp = self.first_stamp = 0
        self.epoch = 0
        self.users = 0
        self.rkeys: tuple[bytes, ...] = ()
        self._drained: asyncio.Future[None] | None = None

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.device.size if self.device is not None else sum(len(span) for span in self.spans)

    def addresses(self) -> tuple[tuple[int, int], ...]:
        """Return where its spans are, and how long: those of a device in the memory of that."""
        if self.device is not None:
            return tuple([(address, size) for address, size, _ in self.device.places])
        return tuple((address_of(span), len(span)) for span in self.spans)

    def cut(self, runs: Sequence[Run]) -> Iterator[memoryview]:
        """Yield the memory of these runs. Raises BadFrame where one is out of range."""
        return cut_runs(self.spans, runs)

    def enter(self) -> None:
        """Use the memory; see R3."""
        self.users += 1

    def leave(self) -> None:
        """Use it no longer."""
        self.users -= 1
        if not self.users and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def wait_unused(self) -> None:
        """Wait until everybody has left."""
        if self.users:
            if self._drained is None or self._drained.done():
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)


def cut_runs(spans: Sequence[memoryview], runs: Sequence[Run]) -> Iterator[memoryview]:
    """Yield views of ``runs`` of the space that ``spans`` make end to end. Raises BadFrame for one out of range."""
    starts = [0, *itertools.accumulate(map(len, spans))]
    for offset, length in runs:
        if offset < 0 or length < 0 or offset + length > starts[-1]:
            raise BadFrame(f"bytes {offset} to {offset + length} of a region of {starts[-1]}")
        index = _find(starts, offset)
        while length:
            span, start = spans[index], offset - starts[index]
            piece = span[start : start + length]
            if len(piece):
                yield piece
            offset += len(piece)
            length -= len(piece)
            index += 1


def _find(starts: Sequence[int], offset: int) -> int:
    low, high = 0, len(starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= offset:
            low = middle
        else:
            high = middle
    return low


class Beacon:
    """The pages with the nonce and the words (R1). They are never unmapped while the process lives."""

    def __init__(self) -> None:
        """Map the first page."""
        self.nonce = os.urandom(NONCE_BYTES)
        self.pages: list[mmap.mmap] = []
        self._free: list[tuple[mmap.mmap, int]] = []
        self._slots: dict[int, tuple[mmap.mmap, int]] = {}
        self._add_page()
        self.address = self._at(self.pages[0], 0)

    def _add_page(self) -> None:
        page = mmap.mmap(-1, _PAGE, mmap.MAP_PRIVATE)
        first = 0
        if not self.pages:
            page[:NONCE_BYTES] = self.nonce
            first = 64
        self.pages.append(page)
        self._free += [(page, offset) for offset in range(first, _PAGE, _WORD.size)]

    @staticmethod
    def _at(page: mmap.mmap, offset: int) -> int:
        return address_of(memoryview(page)) + offset

    def take(self) -> int:
        """Return the address of a word that is free; it is 0."""
        if not self._free:
            self._add_page()
        page, offset = self._free.pop()
        address = self._at(page, offset)
        self._slots[address] = page, offset
        return address

    def set(self, address: int, stamp: int) -> None:
        """Write a word."""
        page, offset = self._slots[address]
        _WORD.pack_into(page, offset, stamp)

    def give_back(self, address: int) -> None:
        """Clear a word; another region may have it."""
        self.set(address, 0)
        self._free.append(self._slots.pop(address))


class Regions:
    """What a process has registered. Any thread may register and remove."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.beacon = Beacon()
        self._stamps = itertools.count(1)
        self._regions: dict[int, Region] = {}  # by id, which is the address of its word
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._regions)

    def add(
        self,
        spans: Sequence[memoryview],
        is_writable: bool,
        keep: object = None,
        device: "DeviceMemory | None" = None,
    ) -> Region:
        """Register memory: flat views of bytes, or that of a device."""
        with self._lock:
            region = Region(self.beacon.take(), spans, is_writable, keep, device)
            self._regions[region.id] = region
            self._renew(region)
            region.first_stamp = region.stamp
        return region

    def advance(self, region: Region) -> None:
        """Begin a new epoch: handles of older ones are stale from now on."""
        with self._lock:
            if self._regions.get(region.id) is region:
                self._renew(region)

    def _renew(self, region: Region) -> None:
        region.stamp = next(self._stamps)
        region.epoch += 1
        self.beacon.set(region.id, region.stamp)

    def find(self, id: int, stamp: int) -> Region:
        """Return a region. Raises StaleHandle where it is registered no longer, or under a newer epoch only."""
        region = self._regions.get(id)
        if region is None or stamp < region.first_stamp:
            raise StaleHandle("registered memory", "it is no longer registered: closed, or its lease has run out")
        if region.stamp != stamp:
            raise StaleHandle("registered memory", "its epoch is over: ask for a newer handle")
        return region

    def remove_all(self) -> list[Region]:
        """Revoke everything; return what there was."""
        return [region for region in list(self._regions.values()) if self.remove(region)]

    def remove(self, region: Region) -> bool:
        """Revoke: from now on nobody begins to use it. Return whether it was registered. See `Region.wait_unused`."""
        with self._lock:
            if self._regions.get(region.id) is not region:
                return False
            del self._regions[region.id]
            self.beacon.give_back(region.id)
            return True
