"""What is on its way in one transfer over UCX.

F1. At most so many requests and bytes are on their way at once; the next one waits for the oldest.
F2. UCX cannot take back a request, and closing the endpoint of one whose answers still arrive makes it write to memory
    that it has freed. So who gives up a transfer waits for its requests where that takes a moment, as the kernel or a
    network card does them. Where it is for the owner's worker to do them, which may be stopped, bytes go through blocks
    of our own, and a transfer that is given up leaves those behind, until their requests have ended.
F3. Remote keys are kept as long as a request uses them; `when_over` tells when none does.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from monarch_async.bulk.memory import copy
from monarch_async.bulk.region import RemoteRegion
from monarch_async.bulk.transport import Progress, Run
from monarch_async.bulk.ucx_endpoint import Request, UcxEndpoint
from monarch_async.bulk.ucx_worker import UcxWorker
from monarch_async.errors import BadFrame

#: Bytes per request, and how many requests and bytes may be on their way at once.
PIECE, _MOST, _WINDOW = 4 << 20, 128, 16 << 20

#: A request of up to this size is likely to end while it is begun.
_SMALL = 64 << 10

#: (index of its span, address at the owner, memory here)
Place = tuple[int, int, memoryview]


class Flight:
    """See the module. On the worker's loop."""

    def __init__(self, worker: UcxWorker, way: UcxEndpoint, region: RemoteRegion, progress: Progress) -> None:
        """``progress`` is told what has been moved."""
        self._worker, self._way, self._region, self._progress = worker, way, region, progress
        self._is_direct = way.is_one_sided and not region.device
        self._keys: dict[int, Any] = {}  # unpacked ones, by span
        self._pending: deque[tuple[Request, memoryview, memoryview | None]] = deque()  # where to, from which block
        self._bytes = 0

    async def get(self, places: Iterator[Place]) -> None:
        """Read pieces. Raises UcxFailure."""
        for count, (index, address, view) in enumerate(places):
            await self._make_room(len(view), count)
            block = None if self._is_direct else self._worker.blocks.take(len(view))
            request = self._way.get(address, self._key(index), view if block is None else block)
            await self._begun(request, view, block)
        await self._land()

    async def put(self, places: Iterator[Place]) -> None:
        """Write pieces; they are there when this returns. Raises UcxFailure."""
        for count, (index, address, view) in enumerate(places):
            await self._make_room(len(view), count)
            source = view
            if not self._is_direct:
                source = self._worker.blocks.take(len(view))
                copy(source, view)
            await self._begun(self._way.put(address, self._key(index), source), view, None)
        await self._land()
        request = self._way.flush()
        if request is not None:
            self._pending.append((request, memoryview(b""), None))
            await self._land()

    def _key(self, index: int) -> Any:
        key = self._keys.get(index)
        if key is None:
            key = self._keys[index] = self._way.unpack(self._region.rkeys[index])
        return key

    async def _make_room(self, size: int, count: int) -> None:
        while self._pending and (len(self._pending) >= _MOST or self._bytes + size > _WINDOW):
            await self._oldest()
        if count and not count % 64:  # however many end at once, others have their turn
            await asyncio.sleep(0)

    async def _begun(self, request: Request | None, view: memoryview, block: memoryview | None) -> None:
        if request is None:
            self._moved(view, block)
            return
        self._pending.append((request, view, block))
        self._bytes += len(view)
        if len(view) <= _SMALL:
            self._worker.progress(8)

    async def _land(self) -> None:
        while self._pending:
            await self._oldest()

    async def _oldest(self) -> None:
        request, view, block = self._pending[0]
        if not request.done():
            await asyncio.shield(request)
        self._pending.popleft()
        self._bytes -= len(view)
        request.result()
        self._moved(view, block)

    def _moved(self, view: memoryview, block: memoryview | None) -> None:
        if block is not None:
            copy(view, block)
        if len(view):
            self._progress(len(view))

    async def end(self) -> None:
        """Return when nothing touches the caller's memory any more (F2); being cancelled changes nothing of that."""
        is_cancelled = False
        while self._is_direct and any(not request.done() for request, _, _ in self._pending):
            try:
                await asyncio.wait([request for request, _, _ in self._pending])
            except asyncio.CancelledError:
                is_cancelled = True
        self.when_over(self._destroy_keys)
        if is_cancelled:
            raise asyncio.CancelledError

    def when_over(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` as soon as no request of this is on its way any more; now, where none is."""
        left = len(self._pending)

        def ended(request: Request) -> None:
            nonlocal left
            request.exception()  # looked at: what is raised is the first one
            left -= 1
            if not left:
                callback()

        for request, _, _ in self._pending:
            request.add_done_callback(ended)
        if not left:
            callback()

    def _destroy_keys(self) -> None:
        for key in self._keys.values():
            self._way.destroy(key)
        self._keys.clear()


def find_places(region: RemoteRegion, runs: Sequence[Run], views: Sequence[memoryview]) -> Iterator[Place]:
    """Yield what goes where: runs of a region, and ``views`` of as many bytes, cut alike into pieces of `PIECE`.

    Raises BadFrame where a run is out of range.
    """
    starts = [0, *accumulate(size for _, size in region.spans)]
    ours = iter(views)
    here = memoryview(b"")
    for offset, length in runs:
        if offset < 0 or length < 0 or offset + length > starts[-1]:
            raise BadFrame(f"bytes {offset} to {offset + length} of a region of {starts[-1]}")
        while length:
            index = bisect_right(starts, offset) - 1
            address, size = region.spans[index]
            inside = offset - starts[index]
            while not len(here):
                here = next(ours)
            count = min(length, size - inside, len(here), PIECE)
            yield index, address + inside, here[:count]
            here = here[count:]
            offset, length = offset + count, length - count
