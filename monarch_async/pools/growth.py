"""What a pool does when there is no room: it asks for one more host, one at a time."""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable
from contextvars import Context

from monarch_async.errors import Unschedulable
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.placement_request import PlacementRequest

log = logging.getLogger("monarch_async")

PATIENCE = 1.0  #: seconds that a replica waits for room before a host is asked for
PAUSE = 30.0  #: seconds before it is asked again after it failed

Grow = Callable[[], Awaitable[object]]


async def grow_by_one() -> None:
    """Get one more host from where the program has its own. Raises what kept it from coming."""
    await cluster().grow(1)


class Growth:
    """Asks for hosts on behalf of all replicas of one pool."""

    def __init__(self, domain: Domain, name: str, grow: Grow | None) -> None:
        """``grow`` returns once one more host has joined; None: there is nobody to ask."""
        self._domain, self._name, self._grow = domain, name, grow
        self._under_way: asyncio.Task[bool] | None = None
        self._paused_until = 0.0

    async def place(self, request: Callable[[], PlacementRequest]) -> Placement:
        """Return the placement asked for. Raises as the request.

        Where that takes long, or there is no room at all, a host is asked for: one for each replica that found no room,
        at most, so that what fits nowhere does not go on growing.
        """
        if self._grow is None:
            return await request()
        has_asked = False
        placing = asyncio.ensure_future(_arrived(request()))
        try:
            while True:
                await asyncio.wait([placing], timeout=PATIENCE)
                is_refused = (
                    placing.done() and not placing.cancelled() and isinstance(placing.exception(), Unschedulable)
                )
                if has_asked or (placing.done() and not is_refused):
                    return await placing
                is_mine, growing = self._ask()
                if growing is None:
                    return await placing
                await asyncio.wait([growing] if is_refused else [growing, placing], return_when=FIRST_COMPLETED)
                if is_refused and growing.result():
                    placing = asyncio.ensure_future(_arrived(request()))
                has_asked = is_mine or (growing.done() and not growing.result())
        except BaseException:
            placing.cancel()
            await asyncio.wait([placing])
            if not placing.cancelled() and placing.exception() is None:  # it came just as this was cancelled
                await placing.result().release()
            raise

    def _ask(self) -> "tuple[bool, asyncio.Task[bool] | None]":
        """Return whether this asks for a host, and what waits for it. Others may be waiting for one already."""
        loop = self._domain.router.loop
        if self._under_way is not None:
            return False, self._under_way
        if self._grow is None or loop.time() < self._paused_until:
            return False, None
        self._under_way = loop.create_task(self._growing(self._grow), context=Context())
        return True, self._under_way

    async def _growing(self, grow: Grow) -> bool:
        try:
            await grow()
        except Exception as error:  # where it comes from is the user's: whatever that raises is the reason
            self._paused_until = self._domain.router.loop.time() + PAUSE
            log.warning("pool %s has no room, and got no further host: %s", self._name, error)
            return False
        finally:
            self._under_way = None
        return True

    async def aclose(self) -> None:
        """Ask for nothing any more."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])


async def _arrived(request: PlacementRequest) -> Placement:
    return await request
