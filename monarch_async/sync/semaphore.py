"""Semaphores between processes."""

from types import TracebackType

from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.sync.holds import Held
from monarch_async.sync.reference import check_number


class Semaphore(Held):
    """A number of permits, held by processes and actors as a `Lock` is.

        gpu_heavy = ma.Semaphore(2, "gpu-heavy")
        async with gpu_heavy: ...               # one permit
        async with gpu_heavy.taking(2): ...     # two at once, or none

    First come, first served: who wants many is not passed by who wants few.
    """

    __slots__ = ()
    _kind = "semaphore"

    def __init__(self, permits: int, name: str | None = None, *, home: HostMesh | None = None) -> None:
        """Make a reference to a semaphore of so many permits; nothing is sent.

        ``name`` and ``home`` are as of `Lock`. Who uses a name with another number of permits than others do gets
        BadCall. Raises BadCall for a bad argument.
        """
        super().__init__(name, home, check_number("Semaphore", "permits", permits))

    async def acquire(self, count: int = 1) -> int:
        """Wait for ``count`` permits; return the token, for `release`. Raises BadCall for more than there are."""
        return await self._acquire(check_number(f"{self.name}.acquire", "count", count))

    def taking(self, count: int) -> "Taking":
        """Return an ``async with`` block that holds ``count`` permits."""
        return Taking(self, check_number(f"{self.name}.taking", "count", count))

    async def free(self) -> int:
        """Return how many permits nobody holds now."""
        return self._params[0] - sum(holder.count for holder in await self.holders())

    async def __aenter__(self) -> int:
        """Acquire one permit; return the token."""
        return await self._enter(1)


class Taking:
    """See `Semaphore.taking`."""

    __slots__ = ("_count", "_semaphore")

    def __init__(self, semaphore: Semaphore, count: int) -> None:
        """Nothing is taken yet."""
        self._semaphore, self._count = semaphore, count

    async def __aenter__(self) -> int:
        """Acquire them; return the token."""
        return await self._semaphore._enter(self._count)

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Give them back, without waiting."""
        self._semaphore._exit(error)
