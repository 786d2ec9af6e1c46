"""What one actor's proc holds: its room, and its place among those that may be ended with a placement group."""

from collections.abc import Awaitable, Callable

from monarch_async.control.host import Host
from monarch_async.errors import Error
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.ray.amounts import Amounts


class Seat:
    """Made by `placing.Placing`. ``on_removed`` is told first when its room is taken away, and may have ended the proc.

    Attributes:
        host: where it is, once known.
        placement: what it holds; None where it holds nothing.
    """

    def __init__(self, name: str, amounts: Amounts, on_removed: Callable[[str], Awaitable[None] | None] | None) -> None:
        """Of the actor ``name``."""
        self.name, self.amounts = name, amounts
        self.host: Host | None = None
        self.placement: Placement | None = None
        self.procs: ProcMesh | None = None
        self.leave: list[Callable[[], None]] = []  #: called once when its room is given back
        self._on_removed = on_removed
        self._is_evicted = False

    async def give_back(self) -> None:
        """Its proc has ended. Twice is fine."""
        leaving, self.leave = self.leave, []
        try:
            if self.placement is not None:
                await self.placement.release()
        finally:
            for leave in leaving:
                leave()

    async def evict(self, why: str) -> None:
        """Its room is taken away: end its proc, and wait until it is gone."""
        if self._is_evicted:
            return
        self._is_evicted = True
        if self._on_removed is not None and (ending := self._on_removed(why)) is not None:
            await ending
        allocation = self.procs.allocation if self.procs is not None else None
        if allocation is not None and not allocation.is_stopped:
            try:
                await allocation.stop(allocation.addresses, why)
            except Error:  # its host is gone, or the program ends: so has it
                pass
        await self.give_back()
