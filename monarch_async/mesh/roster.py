"""The hosts of a program as it may change them: join, drain, leave, grow. The client's own; see `remote_roster` too."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol

from monarch_async.control.host import Host
from monarch_async.control.host_watch import HostWatch
from monarch_async.errors import BadCall
from monarch_async.ids import AGENT, address, host_of
from monarch_async.mesh.host_source import HostSource
from monarch_async.scheduler.resources import Resources

if TYPE_CHECKING:
    from monarch_async.mesh.program import Program


class Roster(Protocol):
    """What `monarch_async.mesh.cluster.Cluster` says of each; hosts are ids here."""

    async def watch(self) -> HostWatch:
        """Follow what becomes of hosts."""
        ...

    async def fetch(self) -> Sequence[Host]:
        """Return all hosts that live."""
        ...

    async def join(self, url: str) -> Host:
        """Take in the host whose agent listens there."""
        ...

    async def drain(self, host: int, deadline: float | None) -> None:
        """Let a host go when nothing runs there."""
        ...

    async def leave(self, host: int) -> None:
        """Let a host go now."""
        ...

    async def grow(self, count: int, resources: Resources | None) -> Sequence[Host]:
        """Get more hosts from the source."""
        ...


class ClientRoster:
    """The client's: see `Roster`."""

    def __init__(self, program: "Program", token: bytes, source: HostSource | None) -> None:
        """``token`` is that of agents that join; ``source`` gives further hosts, where there is one."""
        self._program, self._token, self._source = program, token, source
        self._controller, self._links = program.controller, program.controller.links
        self._given: dict[str, Host] = {}  # by URL, as an agent may be started anew: of the source, not given back
        self._drains: Counter[int] = Counter()  # by host: who waits for it to be empty
        self._departures: dict[int, asyncio.Task[None]] = {}
        self._requests = 0  # to the source that are under way
        self._declare()

    async def watch(self) -> HostWatch:
        """See `Roster`. Raises Closed."""
        return self._links.watch()

    async def fetch(self) -> Sequence[Host]:
        """See `Roster`."""
        return self._program.hosts

    async def join(self, url: str) -> Host:
        """See `Roster`."""
        host = await self._controller.join(url, self._token)
        self._program.warm([host])
        return host

    async def grow(self, count: int, resources: Resources | None) -> Sequence[Host]:
        """See `Roster`. All of them, or none."""
        source = self._source
        if source is None:
            raise BadCall("grow", "this program has no source of further hosts: attach(..., source=...)")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise BadCall("grow", f"count={count!r}: expected a positive number of hosts")
        self._requests += 1
        try:
            urls = await source.request(count, resources)
            try:
                hosts = await self._controller.join_all(urls, self._token)
            except BaseException:
                given = [source.give_back(Host(0, url, url)) for url in urls]
                await asyncio.gather(*given, return_exceptions=True)
                raise
        finally:
            self._requests -= 1
            self._declare()
        self._given.update({host.url: host for host in hosts})
        self._program.warm(hosts)
        return hosts

    async def drain(self, host: int, deadline: float | None) -> None:
        """See `Roster`. Cancelled while it waits, the host is open again, unless others want it drained or left."""
        latest = self._links.members.latest(host)
        if latest is None:
            return
        self._links.drain(host, "it is drained" if deadline is None else f"it is drained, within {deadline:g} s")
        emptied = asyncio.ensure_future(self._controller.requests.send(address(host, AGENT), "emptied"))
        emptied.add_done_callback(lambda _: emptied.cancelled() or emptied.exception())  # a lost one is empty as well
        self._drains[host] += 1
        try:
            await asyncio.wait([emptied], timeout=deadline)
        except BaseException:
            if self._drains[host] == 1 and host not in self._departures:
                self._links.reopen(host, "it is not drained after all")
            raise
        finally:
            self._drains -= Counter([host])  # which keeps no zeros
        await self._depart(latest.host, "it was drained")

    async def leave(self, host: int) -> None:
        """See `Roster`."""
        latest = self._links.members.latest(host)
        if latest is not None:
            self._links.drain(host, "it is to leave")
            await self._depart(latest.host, "it was left")

    async def _depart(self, host: Host, why: str) -> None:
        """Once for each host, however many ask; it goes on where one who asks gives up."""
        task = self._departures.get(host.id)
        if task is None:
            task = self._departures[host.id] = self._program.start_task(self._end(host, why))
            task.add_done_callback(lambda _: self._departures.pop(host.id, None))
        await asyncio.shield(task)

    async def _end(self, host: Host, why: str) -> None:
        """End our procs there in order, those that actors have spawned too, then the session."""
        reason = f"its host {host.name} leaves the program: {why}"
        stops: list[Awaitable[object]] = []
        for allocation in {id(a): a for a in self._program.allocations.values()}.values():
            there = [member for member in allocation.addresses if host_of(member) == host.id]
            if there and not allocation.is_stopped:
                stops.append(allocation.stop(there, reason))
        await asyncio.gather(*stops, return_exceptions=True)
        grace = self._program.config.stop_grace
        rest = self._controller.requests.ask(address(host.id, AGENT), "stop_all", reason, grace)
        await asyncio.gather(rest, return_exceptions=True)  # where it is lost, so is what was there
        await self._controller.leave(host, why)
        await self._give_back(host)

    async def _give_back(self, host: Host) -> None:
        given = self._given.pop(host.url, None)
        if self._source is not None and given is not None:
            try:
                await self._source.give_back(host)
            except asyncio.CancelledError:  # the program ends meanwhile, and gives back what is left
                self._given[host.url] = given
                raise
            finally:
                self._declare()

    def _declare(self) -> None:
        """Say what the source has, unless hosts are on their way: they are there in neither way, and are waited for."""
        if self._source is not None and not self._requests and not self._controller.router.is_closed:
            self._program.placer.declare(self._source.declared())

    async def aclose(self) -> None:
        """Give back what was given, at the end. Raises what kept the first of them from being taken back."""
        given, self._given = list(self._given.values()), {}
        if self._source is not None:
            outcomes = await asyncio.gather(*[self._source.give_back(host) for host in given], return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome


def checked_deadline(deadline: float | None) -> float | None:
    """Return a number of seconds. Raises BadCall."""
    if deadline is not None and not (isinstance(deadline, int | float) and deadline >= 0):
        raise BadCall("drain", f"deadline={deadline!r}: expected seconds, or None to wait for as long as it takes")
    return deadline
