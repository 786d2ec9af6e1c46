"""The transport "memfd", for where processes of a machine may not read each other's memory: two copies instead of one.

The owner copies a piece into a segment of its arena, the reader maps that and copies it out, and meanwhile the owner is
at the next one (`stage`). A writer has its own segments, which the owner copies from.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from monarch_async.bulk.arena import Arena, Token, open_segment
from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.errands import Errands, Link, Operation
from monarch_async.bulk.grant import grant_operations
from monarch_async.bulk.region import Regions, RemoteRegion
from monarch_async.bulk.stage import MOST_BYTES, MOST_RUNS, copy_slices, stage_operations
from monarch_async.bulk.transport import Progress, Run

#: Pieces on their way at once, between two processes and in one direction.
_LANES = 4

_Piece = tuple[list[Run], list[memoryview], int]  # runs of the region, as many bytes here, how many


class Staged:
    """The way to one process of this machine."""

    name = "memfd"

    def __init__(self, endpoint: Endpoint, link: Link, arena: Arena) -> None:
        """``link`` reaches the owner's plane; ``arena`` is this process's. Both stay the caller's."""
        self._endpoint, self._link, self._arena = endpoint, link, arena
        self._errands = Errands()
        self._lanes = asyncio.Semaphore(_LANES), asyncio.Semaphore(_LANES)  # of reads, of writes
        self._numbers = itertools.count(1)
        self._free: list[int] = []  # slots without a piece
        self._mapped: dict[int, tuple[Token, memoryview]] = {}  # by slot
        self._reads = 0

    @staticmethod
    def probe(endpoint: Endpoint) -> str | None:
        """Return None where that process's segments can be opened, else why not, for a person."""
        if not hasattr(os, "memfd_create"):
            return "this system has no memfd_create"
        if endpoint.machine != this_machine():
            return "another machine, or another pid namespace (each container has its own, unless told to share one)"
        if not (endpoint.local or endpoint.tcp):
            return "it has no sockets on which to ask for pieces"
        try:
            os.readlink(f"/proc/{endpoint.pid}/exe")  # asks for the same permission as its descriptors do
        except FileNotFoundError:
            return "its process is gone"
        except OSError as error:
            return (
                f"{error.strerror}: /proc/{endpoint.pid}/fd may not be opened: it is another user's process, or not "
                "dumpable (setuid, or file capabilities); run both as one user"
            )
        return None

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        self._reads += 1
        try:
            await self._move(partial(self._read_piece, region, progress), runs, into)
        finally:
            self._reads -= 1
            if not self._reads:
                self._clear()

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        await self._move(partial(self._write_piece, region, progress), runs, source)

    async def aclose(self) -> None:
        """See `transport.Transport`."""
        await self._errands.aclose()

    async def _move(
        self, move: Callable[[_Piece], Awaitable[None]], runs: Sequence[Run], views: Sequence[memoryview]
    ) -> None:
        if sum(map(len, views)) <= MOST_BYTES and len(runs) <= MOST_RUNS:
            for piece in _pieces(runs, views):
                await move(piece)
            return
        pieces = _pieces(runs, views)

        async def move_all() -> None:
            for piece in pieces:
                await move(piece)

        try:
            async with asyncio.TaskGroup() as lanes:
                for _ in range(_LANES):
                    lanes.create_task(move_all())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _read_piece(self, region: RemoteRegion, progress: Progress, piece: _Piece) -> None:
        runs, views, size = piece
        async with self._lanes[0]:
            slot = self._free.pop() if self._free else next(self._numbers)
            self._mapped.setdefault(slot, _NOT_MAPPED)
            try:
                found = await self._link.ask("stage", region.id, region.stamp, slot, runs)
                source = self._map(slot, tuple(found))
                await copy_slices(views, [source[:size]])
            finally:
                self._free.append(slot)
        progress(size)

    def _map(self, slot: int, token: Token) -> memoryview:
        last, view = self._mapped[slot]
        if last != token:
            view = open_segment(token, is_private=False, is_writable=False)
            self._mapped[slot] = token, view
        return view

    def _clear(self) -> None:
        """Nobody reads: let the owner have its memory back."""
        slots, self._free, self._mapped = list(self._mapped), [], {}
        if slots and self._link.is_open:
            self._errands.start(self._link.ask("clear", slots))

    async def _write_piece(self, region: RemoteRegion, progress: Progress, piece: _Piece) -> None:
        runs, views, size = piece
        async with self._lanes[1]:
            segment = self._arena.take(size)
            await copy_slices([segment.view], views)
            asked = self._errands.start(self._link.ask("collect", region.id, region.stamp, runs, segment.token))

            def ended(asked: "asyncio.Task[Any]") -> None:
                if not asked.cancelled() and asked.exception() is None:
                    self._arena.give_back(segment)  # else the owner may still read it: it goes when it is no more used

            asked.add_done_callback(ended)
            try:
                await asyncio.shield(asked)
            except asyncio.CancelledError:
                await asyncio.wait([asked])  # who is told that a write has ended may rely on it
                raise
        progress(size)


_NOT_MAPPED: tuple[Token, memoryview] = (0, 0, 0, 0), memoryview(b"")


def _pieces(runs: Sequence[Run], views: Sequence[memoryview]) -> Iterator[_Piece]:
    """Cut a transfer into pieces."""
    here, at = iter(view for view in views if len(view)), memoryview(b"")
    cut, room = list[Run](), MOST_BYTES
    found = list[memoryview]()
    for offset, length in runs:
        while length:
            count = min(length, room)
            cut.append((offset, count))
            offset, length, room = offset + count, length - count, room - count
            while count:
                if not len(at):
                    at = next(here)
                found.append(at[:count])
                at, count = at[count:], count - len(found[-1])
            if not room or len(cut) == MOST_RUNS:
                yield cut, found, MOST_BYTES - room
                cut, found, room = [], [], MOST_BYTES
    if cut:
        yield cut, found, MOST_BYTES - room


def local_operations(regions: Regions, arena: Arena) -> dict[str, Operation]:
    """Return what other processes of this machine may ask of a plane: grants, and pieces."""
    return grant_operations(regions) | stage_operations(regions, arena)
