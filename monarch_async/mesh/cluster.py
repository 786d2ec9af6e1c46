"""The cluster a program directs, as a whole: the hosts it has now.

    async with ma.local_hosts(2):
        print(ma.cluster().hosts)
"""

from monarch_async.errors import BadDemand
from monarch_async.mesh.domain import Domain, active_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.mesh.lock_table import LockTable, fetch_locks
from monarch_async.mesh.placement_request import PlacementRequest
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.holdings import Holdings


class Cluster:
    """Everything that is not about one mesh. Made by `cluster`, in the client and in actors; keeps nothing itself."""

    def __init__(self, domain: Domain) -> None:
        """Of the process of ``domain``."""
        self._domain = domain

    @property
    def hosts(self) -> HostMesh:
        """The hosts that this process can spawn procs on now, in the order in which they joined."""
        return HostMesh(self._domain.hosts)

    def place(self, demand: Demand) -> PlacementRequest:
        """Ask for ``demand``: an ``async with`` block that holds its `Placement`, or to be awaited.

        Waits until all of it is had. Raises Unschedulable at once where no host that has joined or is declared could
        ever fit it, and later where those have left. What waits for longer than `Config.warn_after` is logged, with
        a table of who holds what. Works in actors too: then their client places.

        Only what is placed is accounted: procs of `HostMesh.spawn_procs` hold nothing, whatever they use.
        """
        if not isinstance(demand, Demand):
            raise BadDemand(f"place({demand!r}): expected a monarch_async.Demand")
        return PlacementRequest(self._domain, demand)

    async def explain(self, demand: Demand) -> str:
        """Return where ``demand`` would fit now, or why it would wait or never can, and a table of who holds what."""
        return await self._domain.placer.explain(demand)

    async def holdings(self) -> Holdings:
        """Return who holds what on every host of this program, and who waits, in order."""
        return await self._domain.placer.holdings()

    async def locks(self) -> LockTable:
        """Return which locks, semaphores, events, barriers and queues are in use, who holds them and who waits, for how
        long; ``print`` shows it as a table. In an actor: those of its host, and those that have a name."""
        return await fetch_locks(self._domain)


def cluster() -> Cluster:
    """Return the cluster of this program. Raises Closed outside `local_hosts` and `attach`."""
    return Cluster(active_domain())
