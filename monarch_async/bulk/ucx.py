"""The transport "ucx": one-sided reads and writes over UCX, on whatever it finds: network cards, CMA, TCP.

Where the kernel or a network card reads the owner's memory, a read is word, bytes, word (R1); the nonce is not read, as
an endpoint is made only to a process that has just answered on its authenticated connection. Where the owner's worker
does it (over TCP, or to and from devices), that worker asks nothing and would follow a stale address, so a read is made
under a grant, like every write; letting go of that says whether the region is still what it was.
"""

import asyncio
import contextlib
import struct
from collections.abc import Sequence

from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.errands import Errands, Link
from monarch_async.bulk.region import Beacon, RemoteRegion
from monarch_async.bulk.transport import Progress, Run, ignore
from monarch_async.bulk.ucx_endpoint import UcxEndpoint
from monarch_async.bulk.ucx_flight import Flight, find_places
from monarch_async.bulk.ucx_library import UcxFailure, find_library
from monarch_async.bulk.ucx_worker import UcxWorker
from monarch_async.errors import StaleHandle, TransferBroken

_WORD = struct.Struct("<Q")

#: How long a process may take to answer that it still lives, once the way to it has broken.
_SIGN_OF_LIFE = 0.5


def open_worker(beacon: Beacon, *, is_loopback_only: bool) -> UcxWorker | str:
    """Return this process's worker, on the running loop, or why there is none; see `UcxWorker`.

    The first time in a process this loads UCX, which takes up to half a second.
    """
    library = find_library()
    if isinstance(library, str):
        return library
    try:
        return UcxWorker(library, beacon, is_loopback_only=is_loopback_only)
    except UcxFailure as error:
        return str(error)


class Ucx:
    """The way to one other process."""

    name = "ucx"

    def __init__(self, endpoint: Endpoint, worker: UcxWorker, link: Link) -> None:
        """``worker`` is this process's, ``link`` reaches the owner's plane. Both stay the caller's."""
        self._endpoint, self._worker, self._link = endpoint, worker, link
        self._errands = Errands()
        self._connecting = asyncio.Lock()
        self._way: UcxEndpoint | None = None
        self._was_connected = False

    @staticmethod
    def probe(endpoint: Endpoint) -> str | None:
        """Return None where UCX is on both sides, else why not, for a person. See also `connect`."""
        library = find_library()
        if isinstance(library, str):
            return library
        if not endpoint.ucx:
            return "the other process has no UCX worker: it was not allowed to, or did not find the library"
        return None

    async def connect(self) -> UcxEndpoint:
        """Return the way to the other process, made anew where it broke. Raises TransferBroken."""
        way = self._way
        if way is not None and way.is_usable:
            return way
        async with self._connecting:
            if self._way is None or not self._way.is_usable:
                self._way = await self._open()
            return self._way

    async def _open(self) -> UcxEndpoint:
        name = self._endpoint.name
        try:
            async with asyncio.timeout(_SIGN_OF_LIFE if self._was_connected else None):
                await self._link.ask("ucx_hello")
        except TimeoutError:
            raise TransferBroken(name, "its UCX connection broke, and it does not answer") from None
        try:
            way = self._worker.connect(self._endpoint.ucx)
            request = way.flush()
            if request is not None:
                await asyncio.shield(request)
        except UcxFailure as error:
            raise TransferBroken(name, f"UCX does not reach it: {error}") from error
        self._was_connected = True
        return way

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        told = _Told(progress)
        for is_last in (False, True):  # memory that is let go of meanwhile may break the way for all who read there
            way = await self.connect()
            told.begin()
            try:
                if way.is_one_sided and not region.device:
                    await self._read_checked(way, region, runs, into, told)
                else:
                    await self._granted(way, region, False, runs, into, told.add)
                return
            except UcxFailure as error:
                if is_last:
                    raise TransferBroken(self._endpoint.name, f"UCX: {error}") from error

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        way = await self.connect()
        try:
            await self._granted(way, region, True, runs, source, progress)
        except UcxFailure as error:
            raise TransferBroken(self._endpoint.name, f"UCX: {error}") from error

    async def _read_checked(
        self, way: UcxEndpoint, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], told: "_Told"
    ) -> None:
        await self._check_word(way, region)
        flight = Flight(self._worker, way, region, told.add)
        try:
            await flight.get(find_places(region, runs, into))
        finally:
            await flight.end()
        await self._check_word(way, region)

    async def _check_word(self, way: UcxEndpoint, region: RemoteRegion) -> None:
        word = memoryview(bytearray(_WORD.size))
        flight = Flight(self._worker, way, region, ignore)
        try:
            await flight.get(iter([(len(region.rkeys) - 1, region.word_at, word)]))
        finally:
            await flight.end()
        if _WORD.unpack(word)[0] != region.stamp:
            name = self._endpoint.name
            raise StaleHandle(region.what, f"{name} has closed it, or begun a new epoch of it: ask for a newer handle")

    async def _granted(
        self,
        way: UcxEndpoint,
        region: RemoteRegion,
        is_write: bool,
        runs: Sequence[Run],
        views: Sequence[memoryview],
        progress: Progress,
    ) -> None:
        """Move bytes while the owner keeps the memory. Raises StaleHandle, TransferError, UcxFailure."""
        asked = self._errands.start(self._link.ask("ucx_grant", region.id, region.stamp, is_write))
        flight = Flight(self._worker, way, region, progress)
        try:
            number: int = await asyncio.shield(asked)
            try:
                move = flight.put if is_write else flight.get
                await move(find_places(region, runs, views))
            finally:
                await flight.end()
        except BaseException:
            flight.when_over(lambda: asked.add_done_callback(self._abandon))
            raise
        await asyncio.shield(self._errands.start(self._link.ask("ucx_release", number)))

    def _abandon(self, asked: "asyncio.Task[int]") -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._errands.start(self._link.ask("ucx_abandon", asked.result()))

    async def aclose(self) -> None:
        """See `transport.Transport`."""
        self._way = None  # it stays open: see `UcxWorker.connect`
        with contextlib.suppress(TimeoutError):  # what a stopped owner does not answer ends with the connection
            async with asyncio.timeout(_SIGN_OF_LIFE):
                await self._errands.aclose()


class _Told:
    """Progress that counts nothing twice, where a transfer begins anew."""

    __slots__ = ("_most", "_moved", "_progress")

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._moved = self._most = 0

    def begin(self) -> None:
        self._moved = 0

    def add(self, size: int) -> None:
        self._moved += size
        if self._moved > self._most:
            self._progress(self._moved - self._most)
            self._most = self._moved
