"""Locks between processes."""

from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.sync.holds import Held, Holder


class Lock(Held):
    """Held by one at a time, in the order of asking.

        lock = ma.Lock()                    # or ma.Lock("checkpoints")
        async with lock as token:
            await storage.write(data, token)

    It is not re-entrant, and belongs to the process, and there to the actor or task, that got it: when either ends,
    however it ends, the next in line has it at once. The token is larger than that of every holder before. A process
    whose host was out of reach for longer than ``resume_window`` has lost it, and can be told by that: see `check`.
    """

    __slots__ = ()
    _kind = "lock"

    def __init__(self, name: str | None = None, *, home: HostMesh | None = None) -> None:
        """Make a reference to a lock; nothing is sent.

        Args:
            name: the same one wherever this is written; see `Reference`. None: a new one, for whom it is passed to.
            home: the one host whose agent has it.

        Raises BadCall for a bad name or home.
        """
        super().__init__(name, home, 1)

    async def acquire(self) -> int:
        """Wait until it is ours; return the token, for `release`. Cancelled at any moment, it is not."""
        return await self._acquire(1)

    async def holder(self) -> Holder | None:
        """Return who holds it now."""
        return next(iter(await self.holders()), None)

    async def locked(self) -> bool:
        """Return whether anybody holds it now."""
        return await self.holder() is not None

    async def __aenter__(self) -> int:
        """Acquire it; return the token. Raises BadCall in a task that is inside already."""
        self._check_not_entered()
        return await self._enter(1)
