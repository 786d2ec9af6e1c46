"""Memory that others may read and write, at the process it belongs to: what keeps it there, and until when.

A registration belongs to who made it, as procs and actors do: the actor whose endpoint ran, or the block in the client.
It ends with that, with `close`, or when its lease runs out. From that moment its handles are stale, and whoever is in
the middle of a write or is being sent something has left before `close` returns.
"""

import asyncio
import math
from typing import TYPE_CHECKING

from monarch_async.bulk.region import Region, RemoteRegion
from monarch_async.errors import BadCall
from monarch_async.wire.layout import Registered

if TYPE_CHECKING:
    from monarch_async.mesh.domain import Domain


class Registration:
    """See the module. Known to its domain by the id of its region."""

    __slots__ = ("_anchors", "_domain", "_timer", "name", "owner", "region")

    region: Region

    def __init__(self, domain: "Domain", name: str, anchors: list[object]) -> None:
        """``anchors`` keep the memory in place."""
        self._domain, self.name, self._anchors = domain, name, anchors
        self.owner = domain.owner()
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def make(
        cls, domain: "Domain", registered: Registered, is_writable: bool, name: str, lease: float | None
    ) -> "tuple[Registration, RemoteRegion]":
        """Register what was described, for ``lease`` seconds or until it is closed."""
        self = cls(domain, name, registered.anchors)
        if lease is not None:
            check_lease("register", lease)
        self.region, remote = await domain.router.plane.add(
            registered.spans, is_writable, self, name, registered.beyond
        )
        domain.registrations[self.region.id] = self
        if lease is not None:
            self.renew(lease)
        return self, remote

    def renew(self, lease: float | None) -> None:
        """Keep it for so many seconds from now; None: until it is closed."""
        if self._timer is not None:
            self._timer.cancel()
        loop = self._domain.router.loop
        self._timer = loop.call_later(lease, self._expire) if lease is not None else None

    def _expire(self) -> None:
        self._domain.start_task(self.close())

    async def advance(self) -> RemoteRegion:
        """Begin a new epoch."""
        return await self._domain.router.plane.advance(self.region, self.name)

    async def close(self) -> None:
        """Revoke it; return when nobody uses the memory any more. Twice is fine."""
        self.renew(None)
        if self._domain.registrations.get(self.region.id) is self:
            del self._domain.registrations[self.region.id]
        await self._domain.router.plane.remove(self.region)


def find_registration(domain: "Domain", region: RemoteRegion, what: str) -> Registration | None:
    """Return the registration that a handle is of, whatever its epoch; None where it has ended.

    Raises BadCall of ``what`` in any process but its owner.
    """
    if region.endpoint.nonce != domain.router.plane.regions.beacon.nonce:
        raise BadCall(what, f"only its owner can do that, which is {region.endpoint.name}")
    found = domain.registrations.get(region.id)
    return found if found is not None and region.stamp >= found.region.first_stamp else None


def check_lease(what: str, lease: object) -> None:
    """Raise BadCall where ``lease`` is no positive number of seconds."""
    if isinstance(lease, bool) or not isinstance(lease, int | float) or not 0 < lease < math.inf:
        raise BadCall(what, f"lease={lease!r}: expected seconds, more than 0; None for no end")
