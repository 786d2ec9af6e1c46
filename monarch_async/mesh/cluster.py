"""The cluster a program directs, as a whole: the hosts it has now.

    async with ma.local_hosts(2):
        print(ma.cluster().hosts)
"""

from monarch_async.mesh.domain import Domain, active_domain
from monarch_async.mesh.host_mesh import HostMesh


class Cluster:
    """Everything that is not about one mesh. Made by `cluster`, in the client and in actors; keeps nothing itself."""

    def __init__(self, domain: Domain) -> None:
        """Of the process of ``domain``."""
        self._domain = domain

    @property
    def hosts(self) -> HostMesh:
        """The hosts that this process can spawn procs on now, in the order in which they joined."""
        return HostMesh(self._domain.hosts)


def cluster() -> Cluster:
    """Return the cluster of this program. Raises Closed outside `local_hosts` and `attach`."""
    return Cluster(active_domain())
