"""Barriers between processes."""

from collections.abc import Awaitable
from types import TracebackType

from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.sync.reference import Reference, check_number


class Barrier(Reference):
    """A number of parties that wait for each other, again and again.

        barrier = ma.Barrier(4)
        index = await barrier.wait()        # in four places; each gets another index, 0 to 3, in the order of arrival

    It breaks when a party that waits is cancelled or dies, or when one dies that has passed it the last time: all who
    wait, and all who come then, get BarrierBroken, which says who it was. Of a party that has never been there it knows
    nothing: bound the first wait with ``asyncio.timeout``.
    """

    __slots__ = ()
    _kind = "barrier"

    def __init__(self, parties: int, name: str | None = None, *, home: HostMesh | None = None) -> None:
        """Make a reference to a barrier for so many; nothing is sent.

        ``name`` and ``home`` are as of `Lock`. Who uses a name with another number of parties than others do gets
        BadCall. Raises BadCall for a bad argument.
        """
        super().__init__(name, home, check_number("Barrier", "parties", parties))

    @property
    def parties(self) -> int:
        """How many have to arrive."""
        return self._params[0]

    async def wait(self) -> int:
        """Wait until all have arrived; return the place of this arrival among them. Raises BarrierBroken."""
        return await self._ask("arrive")

    def reset(self) -> Awaitable[None]:
        """Begin anew, whole and empty: who waits gets BarrierBroken. Sent at once; await the result to know it is."""
        return self._send("reset").unawaited()

    def abort(self, why: str = "") -> Awaitable[None]:
        """Break it, saying why. Sent at once; await the result to know that it is."""
        return self._send("abort", str(why)).unawaited()

    async def __aenter__(self) -> int:
        """Wait as `wait` does."""
        return await self.wait()

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Nothing."""
