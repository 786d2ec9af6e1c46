"""`get_node_ip_address`: where this host is reached."""

from monarch_async.ids import host_of
from monarch_async.ray.living import address_of
from monarch_async.ray.runtime import current


def get_node_ip_address(address: str | None = None) -> str:
    """Return the address of the host that this process runs on: what its row in ``ray.nodes()`` has.

    ``address`` is taken as programs give it, and changes nothing.
    """
    mine = current()
    hosts, here = mine.domain.hosts, host_of(mine.address)
    return address_of(next((host for host in hosts if host.id == here), hosts[0]))
