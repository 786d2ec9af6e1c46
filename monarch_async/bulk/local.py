"""The transport "local": the region is this process's own."""

from collections.abc import Iterable, Iterator, Sequence

from monarch_async.bulk.copying import copy_pieces
from monarch_async.bulk.memory import copy, pair
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.transport import Progress, Run
from monarch_async.errors import TransferError

#: Bytes copied at once: others have their turn in between.
_SLICE = 8 << 20


class Local:
    """See `transport.Transport`."""

    name = "local"

    def __init__(self, regions: Regions) -> None:
        """Copy to and from ``regions``."""
        self._regions = regions

    def read_now(self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview]) -> None:
        """Copy at once; on any thread. For little."""
        source = self._regions.find(region.id, region.stamp).cut(runs)
        for here, there in pair(into, tuple(source), _SLICE):
            copy(here, there)
        self._regions.find(region.id, region.stamp)  # is it still valid?

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """Copy runs of the region to ``into``."""
        own = self._regions.find(region.id, region.stamp)
        await self._copy(own, region, pair(into, tuple(own.cut(runs)), _SLICE), progress)

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """Copy ``source`` to runs of the region."""
        own = self._regions.find(region.id, region.stamp)
        if not own.is_writable:
            raise TransferError(region.what, "it was registered as read-only")
        await self._copy(own, region, pair(tuple(own.cut(runs)), source, _SLICE), progress)

    async def _copy(
        self, own: Region, region: RemoteRegion, pairs: Iterable[tuple[memoryview, memoryview]], progress: Progress
    ) -> None:
        own.enter()
        try:
            await copy_pieces(self._while_valid(region, pairs), progress)
        finally:
            own.leave()

    def _while_valid(
        self, region: RemoteRegion, pairs: Iterable[tuple[memoryview, memoryview]]
    ) -> Iterator[tuple[memoryview, memoryview]]:
        for pieces in pairs:
            self._regions.find(region.id, region.stamp)
            yield pieces

    async def aclose(self) -> None:
        """Nothing is held."""
