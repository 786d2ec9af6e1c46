"""The memory of a host's shared objects: segments, the regions by which others reach them, files on disk.

What takes long (new memory, files) happens on threads. Files have no name, so none is left, however the agent ends.
"""

import asyncio
import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO, TypeVar

from monarch_async.bulk.arena import Segment, capacity_of
from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.plane import DataPlane
from monarch_async.bulk.region import Region
from monarch_async.control.store_stock import name_of

T = TypeVar("T")

#: Bytes of a file that are read or written by one call.
_AT_ONCE = 64 << 20
_THREADS = 4

#: The kernel lets a process have 65530 mappings; each object in memory is one, and an open file.
_MOST_OBJECTS = 30_000


def costs(budget: int, open_files: int | None = None) -> Callable[[int], int]:
    """Return what an object of so many bytes counts of ``budget``: the memory of its segment, and of very small ones so
    much that their number leaves the agent open files (of ``open_files``; by default what it may have) to work with."""
    if open_files is None:
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _MOST_OBJECTS if open_files == resource.RLIM_INFINITY else min(_MOST_OBJECTS, open_files // 3)
    least = budget // max(most, 1)
    return lambda nbytes: max(capacity_of(nbytes), least)


class Memory:
    """Of one object. ``arrivals`` says what of it is there, where it is being pulled."""

    __slots__ = ("_writing", "arrivals", "is_abandoned", "is_gone", "reading", "segment", "told")

    def __init__(self, segment: Segment, arrivals: Arrivals | None = None) -> None:
        """Nobody else reaches it yet."""
        self.segment, self.arrivals = segment, arrivals
        self.reading: tuple[Region, bytes] | None = None  #: and what describes it to others
        self._writing: Region | None = None
        self.is_abandoned = False  #: a process that has left may still look at it: it cannot be used anew
        self.is_gone = False  #: it has been taken from its object
        self.told: list[asyncio.Future[None]] = []  #: agents that wait for more of it to arrive

    async def describe(self, plane: DataPlane, id: bytes, is_writable: bool) -> bytes:
        """Return the packed region by which another process reads it, or writes it."""
        if not is_writable and self.reading is not None:
            return self.reading[1]
        region, remote = await plane.add([self.segment.view], is_writable, self.segment, name_of(id))
        packed = remote.pack()
        if is_writable:
            self._writing = region
        elif self.reading is None:
            self.reading = region, packed
        else:  # made for another, meanwhile
            packed = self.reading[1]
            await plane.remove(region)
        return packed

    async def end_writing(self, plane: DataPlane) -> None:
        """From now on nobody writes to it from elsewhere."""
        region, self._writing = self._writing, None
        if region is not None:
            await plane.remove(region)

    @property
    def is_written_remotely(self) -> bool:
        """Whether a process writes it by a region."""
        return self._writing is not None

    async def withdraw(self, plane: DataPlane) -> None:
        """From now on nobody reaches it."""
        reading, self.reading = self.reading, None
        if reading is not None:
            await plane.remove(reading[0])
        await self.end_writing(plane)

    @property
    def is_reached(self) -> bool:
        """Whether other processes reach it by a region."""
        return self.reading is not None or self._writing is not None

    def tell(self) -> None:
        """More of it has arrived, or nothing more will."""
        told, self.told = self.told, []
        for waits in told:
            if not waits.done():
                waits.set_result(None)


class StoreMemory:
    """See the module. Objects are known by their ids."""

    def __init__(self, plane: DataPlane, spill_folder: str, most_idle: int) -> None:
        """``most_idle``: bytes of segments that are kept warm for the objects to come."""
        self.plane, self._folder = plane, spill_folder
        self._most_idle = most_idle
        self._loop = asyncio.get_running_loop()
        self._memory: dict[bytes, Memory] = {}
        self._files: dict[bytes, BinaryIO] = {}
        self._threads: ThreadPoolExecutor | None = None

    def __getitem__(self, id: bytes) -> Memory | None:
        return self._memory.get(id)

    def _run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="store")
        return self._loop.run_in_executor(self._threads, function)

    def take_idle(self, id: bytes, nbytes: int) -> bool:
        """Give an object memory, where some is warm."""
        self.plane.arena.limit = self._most_idle
        segment = self.plane.arena.take_idle(nbytes)
        if segment is not None:
            self._memory[id] = Memory(segment)
        return segment is not None

    async def take(self, id: bytes, nbytes: int, arrivals: Arrivals | None = None) -> Memory:
        """Give an object memory. Raises TransferError where there is none; cancelled, it has none either."""
        if not self.take_idle(id, nbytes):
            making = self._run(partial(self.plane.arena.take, nbytes))
            try:
                segment = await asyncio.shield(making)
            except asyncio.CancelledError:
                making.add_done_callback(self._give_back_unused)
                raise
            self._memory[id] = Memory(segment)
        memory = self._memory[id]
        memory.arrivals = arrivals
        return memory

    def _give_back_unused(self, making: "asyncio.Future[Segment]") -> None:
        if not making.cancelled() and making.exception() is None:
            self.plane.arena.give_back(making.result())

    async def free(self, memory: Memory) -> None:
        """Let go of memory once nobody reaches it; see `remove`."""
        await memory.withdraw(self.plane)
        self._give_back(memory)

    def _give_back(self, memory: Memory) -> None:
        if memory.is_abandoned:  # it lasts as long as whoever has it mapped
            return
        arena, segment = self.plane.arena, memory.segment
        if arena.idle_bytes + segment.capacity <= arena.limit:
            arena.give_back(segment)
        else:  # others go for it, which takes 0.1 s for each GiB
            self._run(partial(arena.give_back, segment))

    def remove(self, id: bytes) -> Memory | None:
        """An object's memory goes. Return it where others reach it: then it is to be `free`d."""
        memory = self._memory.pop(id, None)
        if memory is None:
            return None
        memory.is_gone = True
        memory.tell()
        if memory.is_reached:
            return memory
        self._give_back(memory)
        return None

    def abandon(self, ids: Iterable[bytes]) -> None:
        """A process that may have these mapped has left, but still lives."""
        for id in ids:
            if (memory := self._memory.get(id)) is not None:
                memory.is_abandoned = True

    # -- disk ------------------------------------------------------------------------------------------------------

    async def spill(self, id: bytes) -> None:
        """Write an object to disk. Raises OSError, and leaves nothing there then."""
        if len(self._files) >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4:
            raise OSError(errno.EMFILE, f"{len(self._files)} objects are there, each an open file")
        self._files[id] = await self._run(partial(_write, self._folder, self._memory[id].segment.view))

    async def load(self, id: bytes, nbytes: int) -> None:
        """Read an object from disk into new memory. Raises OSError, TransferError."""
        memory = await self.take(id, nbytes)
        await self._run(partial(_read, self._files[id], memory.segment.view))

    def unlink(self, id: bytes) -> None:
        """Remove an object's file. (The system takes its time to free a large one.)"""
        self._run(self._files.pop(id).close)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Let go of everything. Twice is fine."""
        if self._threads is not None:
            threads, self._threads = self._threads, None
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)
        for file in self._files.values():
            file.close()
        self._files.clear()
        for memory in self._memory.values():
            memory.is_gone = True
            memory.tell()
        self._memory.clear()  # not given back: processes that outlive this one may look at it


def _write(folder: str, view: memoryview) -> BinaryIO:
    os.makedirs(folder, exist_ok=True)
    with contextlib.ExitStack() as undo:
        file = undo.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
        offset = 0
        while offset < len(view):
            offset += file.write(view[offset : offset + _AT_ONCE])
        undo.pop_all()
    return file


def _read(file: BinaryIO, view: memoryview) -> None:
    file.seek(0)
    offset = 0
    while offset < len(view):
        count = file.readinto(view[offset : offset + _AT_ONCE])  # type: ignore[attr-defined]
        if not count:
            raise OSError(f"its file on disk ends after {offset} of {len(view)} bytes")
        offset += count

def memory_of_this_machine() -> int:
    """Return how many bytes of memory the processes here may use: what the machine has, or what their group may."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
