"""Where a host is reached: what its rows and this process say of it. The same text in both."""

import socket

from monarch_async.control.host import Host
from monarch_async.ids import host_of
from monarch_async.ray import runtime
from monarch_async.transport.url import Url

LOOPBACK = "127.0.0.1"


def address_of(host: Host) -> str:
    """Return the IP address that the other hosts reach ``host`` by: that of its agent, or the loopback one where that
    is reached on this machine only."""
    url = Url.parse(host.url) if "://" in host.url else None
    if url is None or url.is_local_only:
        return LOOPBACK
    try:
        return str(socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:  # this one does not know the name: others may
        return url.host


def get_node_ip_address(address: str | None = None) -> str:
    """Return the IP address of the host that this process runs on: what its row in ``ray.nodes()`` has.

    ``address`` is taken as programs give it, and changes nothing.
    """
    mine = runtime.current()
    hosts = mine.domain.hosts
    here = host_of(mine.address)
    return next((address_of(host) for host in hosts if host.id == here), address_of(hosts[0]))
