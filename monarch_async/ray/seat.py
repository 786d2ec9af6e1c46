"""What one actor's proc holds: its room, and its place among those that may be ended with a placement group."""

from collections.abc import Awaitable, Callable, Mapping

from monarch_async.control.host import Host
from monarch_async.errors import Error
from monarch_async.mesh.detachment import detach
from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.proc_mesh import Allocation, ProcMesh
from monarch_async.mesh.proc_recipe import ProcRecipe, check_mesh_name
from monarch_async.ranks import Extent
from monarch_async.ray.amounts import Amounts
from monarch_async.ray.devices import device_env


class Seat:
    """Made by `placing.Placing`. ``on_removed`` is told first when its room is taken away, and may have ended the proc.

    Attributes:
        host: where it is, once known.
        placement: what it holds; None where it holds nothing.
        within: the placement of the group that this is in.
    """

    def __init__(self, name: str, amounts: Amounts, on_removed: Callable[[str], Awaitable[None] | None] | None) -> None:
        """Of the actor ``name``."""
        self.name, self.amounts = name, amounts
        self.host: Host | None = None
        self.placement: Placement | None = None
        self.within: Placement | None = None
        self.procs: ProcMesh | None = None
        self.leave: list[Callable[[], None]] = []  #: called once when its room is given back
        self._on_removed = on_removed
        self._is_evicted = False

    def spawn(self, env: Mapping[str, str], cwd: str | None, detached: str | None) -> ProcMesh:
        """Start the proc, on its host. ``detached``: under which name it outlives the driver, where the host does.

        What it holds is kept then for as long as it lives; in a placement group that is all that the group has on this
        host, until the last such actor there has ended. A proc that ends with the driver does not hang on a placement:
        groups end what is in them themselves.
        """
        assert self.host is not None
        check_mesh_name("spawn_procs", self.name)
        domain, hosts = active_domain(), [self.host]
        devices = self.placement.spots[0].gpus if self.placement is not None else ()
        recipe = ProcRecipe.of({**device_env(devices, env), **env}, None, "fork", None, cwd)
        lease = None if domain.why_not_detached(hosts) else detach(domain, detached, hosts)
        held = self.within or self.placement
        hangs_on = held.id if held is not None and lease is not None else 0
        self.procs = Allocation(domain, self.name, Extent(hosts=1), hosts, recipe, hangs_on, lease).mesh
        return self.procs

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
