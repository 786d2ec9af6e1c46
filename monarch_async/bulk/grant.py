"""Permission to write: a one-sided writer asks the owner first, which lets go of no memory that is granted (R3).

A grant ends when its holder releases it, or with the holder's connection. Where that breaks while the holder lives, a
call to the kernel that it began before may still be under way; it is given a moment, and begins no other.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from monarch_async.bulk.errands import Errands, Link, Operation, Peer
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.errors import TransferError

#: How long memory outlives the connection of a writer that may be in the middle of a call.
_LINGER = 0.2


class Grants:
    """A writer's grants at one owner."""

    def __init__(self, link: Link) -> None:
        """Ask over ``link``."""
        self._link = link
        self._errands = Errands()

    @contextlib.asynccontextmanager
    async def of(self, region: RemoteRegion) -> AsyncIterator[None]:
        """Hold a grant in this block. Raises StaleHandle, TransferError where the region is read-only."""
        asked = self._errands.start(self._link.ask("grant", region.id, region.stamp))
        try:
            await asyncio.shield(asked)
            yield
        finally:  # also where it was cancelled while it was asked for: then as soon as it is there
            if asked.done():
                self._release(asked)
            else:
                asked.add_done_callback(self._release)

    def _release(self, asked: "asyncio.Task[Any]") -> None:
        if not asked.cancelled() and asked.exception() is None:
            self._errands.start(self._link.ask("release", asked.result()))

    async def aclose(self) -> None:
        """Wait until the releases have been heard."""
        await self._errands.aclose()


def find_writable(regions: Regions, id: int, stamp: int) -> Region:
    """Return a region that others may write. Raises StaleHandle, TransferError."""
    region = regions.find(id, stamp)
    if not region.is_writable:
        raise TransferError("registered memory", "it is read-only: its owner did not register it for writing")
    return region


def grant_operations(regions: Regions) -> dict[str, Operation]:
    """Return the owner's side: ``grant id stamp`` -> number, ``release number``."""
    numbers = itertools.count(1)
    held: dict[object, dict[int, Region]] = {}

    def gone(client: object) -> None:
        loop = asyncio.get_running_loop()
        for region in held.pop(client).values():
            loop.call_later(_LINGER, region.leave)

    async def grant(client: Peer, arguments: list[Any]) -> int:
        id, stamp = arguments
        region = find_writable(regions, id, stamp)
        grants = held.get(client)
        if grants is None:
            grants = held[client] = {}
            client.on_gone(partial(gone, client))
        region.enter()
        number = next(numbers)
        grants[number] = region
        return number

    async def release(client: Peer, arguments: list[Any]) -> None:
        (number,) = arguments
        region = held.get(client, {}).pop(number, None)
        if region is not None:
            region.leave()

    return {"grant": grant, "release": release}
