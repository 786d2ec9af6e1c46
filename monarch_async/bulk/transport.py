"""The interface of all transports, and what they move: runs of bytes of a region.

A *run* is (offset, length) in the space of bytes that a region is. A transfer moves some runs, one after the other, to
or from a sequence of views of local memory whose lengths add up to the same; the views need not be cut like the runs.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from monarch_async.bulk.region import RemoteRegion

Run = tuple[int, int]

#: Told how many more bytes have been moved; on the plane's thread.
Progress = Callable[[int], None]


def ignore(nbytes: int) -> None:
    """Progress that nobody wants to know of."""


class Transport(Protocol):
    """One way to one other process. Used on the plane's loop only.

    Both raise StaleHandle where the region is not, or no longer, registered; TransferBroken where the way broke for
    good (`read` may have changed ``into``). A cancelled one touches no memory any more once it has ended.
    """

    name: str

    async def read(
        self, region: "RemoteRegion", runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """Copy runs of a region to local memory."""
        ...

    async def write(
        self, region: "RemoteRegion", runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """Copy local memory, which nobody changes meanwhile, to runs of a region; complete there when it returns."""
        ...

    async def aclose(self) -> None:
        """Let go of what it holds. Twice is fine."""
        ...
