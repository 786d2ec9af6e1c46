"""Which way bytes go to and from each other process: the first of the allowed transports that works.

Whether one works is found out by trying it, once per process and peer, and kept with why the better ones did not. A
route whose transport broke is forgotten: who needs it next tries again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.region import RemoteRegion
from monarch_async.bulk.transport import Run, Transport
from monarch_async.bulk.ways import Ways
from monarch_async.errors import NoTransport

if TYPE_CHECKING:
    from monarch_async.bulk.plane import DataPlane

ReadNow = Callable[[RemoteRegion, Sequence[Run], Sequence[memoryview]], None]

#: How many peers a process keeps ways to; the one that was not used for longest goes.
_MOST = 1024


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """What is known of the way to one process: for people."""

    peer: str  #: its name
    transport: str  #: the one taken
    nbytes: int  #: moved so far
    seconds: float  #: how long that took, transfer by transfer
    reasons: Mapping[str, str]  #: why better ones were not taken, by transport

    @property
    def speed(self) -> float:
        """Bytes per second; 0 where nothing has been moved."""
        return self.nbytes / self.seconds if self.seconds else 0.0


class Route:
    """The way to one process."""

    __slots__ = ("beyond", "endpoint", "nbytes", "read_now", "reasons", "seconds", "transport")

    def __init__(self, endpoint: Endpoint, transport: Transport, reasons: dict[str, str]) -> None:
        """``reasons``: why better transports are not taken."""
        self.endpoint, self.transport, self.reasons = endpoint, transport, reasons
        #: Reads a little at once, on any thread; None where the transport cannot.
        self.read_now: ReadNow | None = getattr(transport, "read_now", None)
        self.nbytes, self.seconds = 0, 0.0
        #: How it goes on to memory of the process's devices; by whether that has keys for UCX.
        self.beyond: dict[bool, Route] = {}

    def count(self, nbytes: int, seconds: float) -> None:
        """So many bytes have been moved."""
        self.nbytes += nbytes
        self.seconds += seconds

    def facts(self) -> RouteFacts:
        """Return what people may want to know."""
        return RouteFacts(self.endpoint.name, self.transport.name, self.nbytes, self.seconds, dict(self.reasons))


class Routes:
    """The routes of one plane. On its loop, but for `known` and `facts`."""

    def __init__(self, plane: "DataPlane") -> None:
        """No routes yet."""
        self._plane = plane
        self._ways = Ways(plane)
        self._routes: OrderedDict[bytes, Route] = OrderedDict()  # by nonce: one for each life of a process
        self._finding: dict[Endpoint, asyncio.Task[Route]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def known(self, region: RemoteRegion) -> Route | None:
        """Return the route to a region, where one has been found before.

        One that was found before the process had sockets does not count once it has: it may be able to do more.
        """
        route = self._routes.get(region.endpoint.nonce)
        if route is None or (region.endpoint.key and not route.endpoint.key):
            return None
        return route if _reaches(route.transport, region) else route.beyond.get(bool(region.rkeys))

    async def find(self, region: RemoteRegion) -> Route:
        """Return the route to a region. Raises NoTransport."""
        found = self.known(region)
        if found is not None and found.transport.name == "ucx" and not region.rkeys:  # one that is described silently
            raise NoTransport(region.endpoint.name, {"ucx": "this memory is not registered with it"})
        if found is not None:
            self._routes.move_to_end(region.endpoint.nonce)
            return found
        route = await self._find(region.endpoint)
        if _reaches(route.transport, region):
            return route
        transport, reasons = await self._ways.open_beyond(route.transport, region)
        beyond = route.beyond.setdefault(
            bool(region.rkeys), Route(route.endpoint, transport, {**route.reasons, **reasons})
        )
        if beyond.transport is not transport:  # somebody else was first
            await transport.aclose()
        return beyond

    async def _find(self, endpoint: Endpoint) -> Route:
        found = self._routes.get(endpoint.nonce)
        if found is not None and (found.endpoint.key or not endpoint.key):
            return found
        finding = self._finding.get(endpoint)
        if finding is None:
            finding = asyncio.get_running_loop().create_task(self._open(endpoint))
            self._finding[endpoint] = finding
            finding.add_done_callback(lambda _: self._finding.pop(endpoint, None))
        return await asyncio.shield(finding)

    async def _open(self, endpoint: Endpoint) -> Route:
        reasons: dict[str, str] = {}
        for name in self._plane.config.allowed_transports:
            transport, why = await self._ways.open(name, endpoint)
            if transport is not None:
                route = Route(endpoint, transport, reasons)
                if (before := self._routes.get(endpoint.nonce)) is not None:
                    route.count(before.nbytes, before.seconds)
                    self._close(before)
                self._routes[endpoint.nonce] = route
                while len(self._routes) > _MOST:
                    _, oldest = self._routes.popitem(last=False)
                    self._close(oldest)
                return route
            reasons[name] = why
        raise NoTransport(endpoint.name, reasons)

    def drop(self, route: Route) -> None:
        """A route has broken, or the end of it that is for devices."""
        known = self._routes.get(route.endpoint.nonce)
        if known is not None and (known is route or route in known.beyond.values()):
            del self._routes[route.endpoint.nonce]
            self._close(known)

    def _close(self, route: Route) -> None:
        closing = asyncio.get_running_loop().create_task(self._end(route))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _end(self, route: Route) -> None:
        await self._ways.close(route.transport, route.endpoint)
        for beyond in route.beyond.values():
            await beyond.transport.aclose()

    def facts(self) -> list[RouteFacts]:
        """Return what people may want to know of every route, the latest last."""
        found = []
        for route in list(self._routes.values()):
            beyond = list(route.beyond.values())
            found += [part.facts() for part in (route, *beyond) if part.nbytes or part is not route or not beyond]
        return found

    async def aclose(self) -> None:
        """Close every transport. Twice is fine."""
        for finding in list(self._finding.values()):
            finding.cancel()
        for route in list(self._routes.values()):
            self._close(route)
        self._routes.clear()
        if self._closing:
            await asyncio.wait(self._closing)
        await self._ways.aclose()


def _reaches(transport: Transport, region: RemoteRegion) -> bool:
    """Whether a transport to a process's memory reaches this region itself."""
    return not region.device or (transport.name == "ucx" and bool(region.rkeys))
