"""The cluster a program directs, as a whole: the hosts it has now, and what is placed on them.

    async with ma.local_hosts(2):
        print(ma.cluster().hosts)
"""

import asyncio
from collections.abc import AsyncIterator

from monarch_async.control.host import Host
from monarch_async.control.membership import HostEvent
from monarch_async.errors import BadCall, BadDemand
from monarch_async.mesh.domain import Domain, active_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.mesh.leases import DetachedLease, DetachedStatus, adopt, fetch_detached
from monarch_async.mesh.lock_table import LockTable, fetch_locks
from monarch_async.mesh.placement_request import PlacementRequest
from monarch_async.mesh.roster import checked_deadline
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.holdings import Holdings
from monarch_async.scheduler.resources import Resources


class Cluster:
    """Everything that is not about one mesh. Made by `cluster`, in the client and in actors; keeps nothing itself."""

    def __init__(self, domain: Domain) -> None:
        """Of the process of ``domain``."""
        self._domain = domain

    @property
    def hosts(self) -> HostMesh:
        """The hosts of this program that live now, in the order in which they joined; a mesh made now stays as it is.

        One that is suspect (see `events`) or drained is among them. In an actor: its own host first; the others once
        `fetch_hosts` or `events` was used there.

        Where there is none now it raises HostLost, which names those that are lost and says why; Closed where all have
        left.
        """
        if not (hosts := self._domain.hosts):
            raise self._domain.why_no_host()
        return HostMesh(hosts)

    async def fetch_hosts(self) -> HostMesh:
        """Return all of `hosts`, in actors too. Waits for the client, once; from then on they are told of changes."""
        await self._domain.roster.fetch()
        return self.hosts

    async def events(self) -> AsyncIterator[HostEvent]:
        """Follow what becomes of hosts: ``async for event in cluster.events()``.

        First comes one event for each host there is, then every change, each with a ``version`` that counts up. It ends
        when the program leaves its hosts. A reader more than a thousand changes behind misses what lay between: it gets
        one event for each host that is not as it was when last read.

        A host is ``suspect`` as soon as its connection breaks, or it is not heard for three heartbeats. It may come
        back ``up``, with nothing lost; after ``Config.resume_window`` it is ``lost``. A lost host is dialled on, and
        comes back empty (``joining``, ``up``): what ran there has ended, and old references go on failing.
        """
        watch = await self._domain.roster.watch()
        async for event in watch:
            yield event

    async def join(self, url: str) -> HostMesh:
        """Take in the host whose agent listens at ``url``, with this program's token; return it as a mesh of one.

        Waits until it is up. Raises ValueError where it is one of this program's already or the address is bad,
        LinkBroken where nobody listens, HandshakeRefused where token, version or certificate is wrong.
        """
        return HostMesh([await self._domain.roster.join(url)])

    async def grow(self, count: int, resources: Resources | None = None) -> HostMesh:
        """Get ``count`` more hosts from where this program has its own (`HostSource`); return them as a mesh.

        `local_hosts` starts further agents; `attach` asks its ``source``. ``resources``: only hosts of that kind. Waits
        until all are up; they are given back when they leave, and at the end. Raises BadCall where there is no source,
        and what kept the source from giving them; then there are none.
        """
        return HostMesh(await self._domain.roster.grow(count, resources))

    async def drain(self, host: Host | HostMesh | str, deadline: float | None = None) -> None:
        """Let a host (or several) go: nothing new is placed there, and once no proc of this program is left it leaves.

        ``deadline``: seconds after which what still runs there is stopped, as by `leave`. Waits until it has left.
        Where that is cancelled it stays, and is used again (in actors it goes on). `HostMesh.spawn_procs` still starts
        procs there, if it is told to. Shared objects that only this host has go with it. Raises BadCall for what is no
        host, nor the name of one.
        """
        roster, seconds = self._domain.roster, checked_deadline(deadline)
        await asyncio.gather(*[roster.drain(id, seconds) for id in await self._ids("drain", host)])

    async def leave(self, host: Host | HostMesh | str) -> None:
        """Let a host (or several) go now: procs of this program there are stopped in order.

        What waits for them fails with HostLost or ProcDied. For an actor that has spawned some of them that is a
        failure, which it may handle. Waits until it has left; twice is fine. Raises BadCall as `drain`.
        """
        await asyncio.gather(*[self._domain.roster.leave(id) for id in await self._ids("leave", host)])

    async def _ids(self, what: str, host: Host | HostMesh | str) -> list[int]:
        if isinstance(host, str):
            hosts = (await self.fetch_hosts()).hosts
            if found := [member.id for member in hosts if member.name == host]:
                return found
            raise BadCall(what, f"no host {host!r}; there are: {', '.join(member.name for member in hosts)}")
        if isinstance(host, Host):
            return [host.id]
        if isinstance(host, HostMesh):
            return [member.id for member in host.hosts]
        raise BadCall(what, f"{host!r}: expected a host, its name, or a mesh of hosts")

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

    async def detached(self) -> list[DetachedStatus]:
        """Return what lives on these hosts without a program of its own, or will: see ``detached`` of `spawn_procs`.

        Also what this program and others still hold. Waits for all hosts.
        """
        return await fetch_detached(self._domain)

    async def adopt(self, name: str, *, wait: float = 0.0) -> DetachedLease:
        """Take over the procs that another program detached under this name, now that it is gone.

        From then on this program is their owner, and the client at their root: what they print appears here, what fails
        goes to the policies around this call, and they are stopped and restarted from here. They end with a block no
        more than before: leave, and another program may adopt them. What they have printed since their last owner was
        last heard is shown; what failed is put to the policies now, and in `DetachedLease.failures`.

        Hosts of the lease that this program has not joined it joins, by their addresses and its own token; procs on one
        that cannot be reached are dead ranks. ``wait``: seconds to wait for an owner that is not connected, whose
        lease runs out `Config.resume_window` after it was last heard.

        Raises NoSuchLease, and LeaseHeld where a program that lives holds it; BadCall in an actor.
        """
        return await adopt(self._domain, name, wait)

    async def locks(self) -> LockTable:
        """Return which locks, semaphores, events, barriers and queues are in use, who holds them and who waits, for how
        long; ``print`` shows it as a table. In an actor: those of its host, and those that have a name."""
        return await fetch_locks(self._domain)


def cluster() -> Cluster:
    """Return the cluster of this program. Raises Closed outside `local_hosts` and `attach`."""
    return Cluster(active_domain())
