"""The hosts that live, as the hub sees them: what may be placed on, and what Ray calls nodes."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from monarch_async.control.host import Host
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.ray.amounts import NODE, Amounts
from monarch_async.transport.url import Url

log = logging.getLogger("monarch_async")

#: The resource that only the first host has, as Ray's head node.
HEAD = f"{NODE}__internal_head__"

#: The label that every node has.
NODE_ID_LABEL = "ray.io/node-id"


def node_id_of(host: int) -> str:
    """Return how a host is called in Ray's world: 56 hexadecimal digits."""
    return f"{host:056x}"


def address_of(host: Host) -> str:
    """Return the address (or name) by which others reach a host: the loopback's, where only this machine can.

    A name is not looked up: that would block, and others may know it where this one does not.
    """
    url = Url.parse(host.url)
    return "127.0.0.1" if url.is_local_only else url.host


def plain_resources(host: Host) -> dict[str, float]:
    """Return what a host has, in Ray's names; what it has none of is left out."""
    there = host.resources
    plain = {"CPU": there.cpus, "GPU": float(len(there.gpus)), "memory": float(there.memory)}
    return {name: amount for name, amount in {**plain, **there.custom}.items() if amount}


class LivingHosts:
    """Follows what becomes of hosts. ``version`` goes up with every change."""

    def __init__(self, hosts: HostMesh) -> None:
        """Begin with these; `start` follows the others."""
        self.version = 0
        self.lost: dict[int, Host] = {}  #: those that were here and are gone
        self.on_lost: list[Callable[[Host], None]] = []
        self._living = {host.id: host for host in hosts.hosts}
        self._closed: set[int] = set()  # nothing new goes there
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow the changes until `aclose`."""
        self._task = asyncio.create_task(self._follow())

    async def aclose(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        async for event in cluster().events():
            host = event.host
            if event.kind in ("up", "suspect", "draining"):
                self._living[host.id] = host
                self.lost.pop(host.id, None)
            elif self._living.pop(host.id, None) is not None:
                self.lost[host.id] = host
                for tell in self.on_lost:
                    tell(host)
            (self._closed.discard if event.kind == "up" else self._closed.add)(host.id)
            self.version += 1
            self._changed.set()

    @property
    def hosts(self) -> list[Host]:
        """All that live, in the order in which they joined."""
        return list(self._living.values())

    @property
    def head(self) -> Host | None:
        """The first that lives."""
        return next(iter(self._living.values()), None)

    def by_node_id(self, node_id: str) -> Host | None:
        """Return the living host of a node id, if there is one."""
        try:
            return self._living.get(int(node_id, 16))
        except (ValueError, TypeError):
            return None

    def open_hosts(self) -> list[Host]:
        """Return those that new procs may go to: all that live, where none is better than the others."""
        return [host for host in self._living.values() if host.id not in self._closed] or self.hosts

    def allowed(self, amounts: Amounts, among: Sequence[Host] | None = None) -> list[Host]:
        """Return the hosts that could ever give these amounts, and have the ``node:`` resources asked."""
        hosts = self.hosts if among is None else among
        return [host for host in hosts if amounts.fits(host.resources) and self._has_nodes(host, amounts.nodes)]

    def _has_nodes(self, host: Host, nodes: Sequence[str]) -> bool:
        return not nodes or set(nodes) <= set(self.node_resources(host))

    def node_resources(self, host: Host) -> dict[str, float]:
        """Return the resources that say which node it is."""
        named = {f"{NODE}{address_of(host)}": 1.0}
        return {**named, HEAD: 1.0} if host is self.head else named

    def labels(self, host: Host) -> dict[str, str]:
        """Return the labels of a host; its node id is one."""
        return {NODE_ID_LABEL: node_id_of(host.id), **host.resources.labels}

    async def wait_allowed(self, what: str, asked: str, find: Callable[[], Sequence[Host]]) -> Sequence[Host]:
        """Wait until ``find`` returns hosts, which it is asked again whenever some come or go; warn once of waiting.

        ``asked``: for what, in the warning.
        """
        is_told = False
        while not (found := find()):
            if not is_told:
                log.warning(
                    "%s asks for %s: it cannot be scheduled on any host that is here now, and waits for one that fits; "
                    "%s", what, asked, self._told(),
                )  # fmt: skip
                is_told = True
            await self.wait_changed()
        return found

    def _told(self) -> str:
        """Return what the hosts have, those with the most first, and not more of them than are read."""
        hosts = sorted(self.hosts, key=lambda host: (-len(host.resources.gpus), -host.resources.cpus))
        rows = [f"{host.name} has {plain_resources(host)}" for host in hosts[:3]]
        return ", ".join([*rows, *([f"and {len(hosts) - 3} more"] if len(hosts) > 3 else [])]) or "no host is here"

    async def wait_changed(self, at_most: float | None = None) -> None:
        """Wait for the next change; ``at_most`` so many seconds."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._changed.wait()
