"""Events between processes."""

from collections.abc import Awaitable

from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.sync.reference import Reference


class Event(Reference):
    """Set or not, for all processes at once.

        ready = ma.Event()
        await ready.wait()      # in some
        ready.set()             # in another: all go on
    """

    __slots__ = ()
    _kind = "event"

    def __init__(self, name: str | None = None, *, home: HostMesh | None = None) -> None:
        """Make a reference to an event that is not set; nothing is sent. ``name`` and ``home`` are as of `Lock`."""
        super().__init__(name, home)

    def set(self) -> Awaitable[None]:
        """Set it: who waits goes on. Sent at once; await the result to know that it is."""
        return self._send("set").unawaited()

    def clear(self) -> Awaitable[None]:
        """Undo `set`, for who waits from now on. Sent at once; await the result to know that it is."""
        return self._send("clear").unawaited()

    async def is_set(self) -> bool:
        """Return whether it is set now."""
        return await self._ask("is_set")

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._ask("wait")
