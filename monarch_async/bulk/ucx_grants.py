"""The owner's side of UCX: who may use which memory just now, as its worker does not ask (W3, R3).

A grant ends when its holder releases it. A holder that failed in the middle, or went away, may have sent requests that
this process's worker has yet to work off: its memory is kept until that is done.
"""

import itertools
from functools import partial
from typing import Any

from monarch_async.bulk.errands import Operation, Peer
from monarch_async.bulk.grant import find_writable
from monarch_async.bulk.region import Region, Regions
from monarch_async.bulk.ucx_worker import UcxWorker


class UcxGrants:
    """See the module. On the plane's loop."""

    def __init__(self, regions: Regions, worker: UcxWorker) -> None:
        """Nobody has any."""
        self._regions, self._worker = regions, worker
        self._numbers = itertools.count(1)
        self._held: dict[object, dict[int, tuple[Region, int]]] = {}  # by client and number: region, stamp

    def operations(self) -> dict[str, Operation]:
        """Return what peers may ask for.

        ``ucx_hello``: answered by whoever has a worker. ``ucx_grant id stamp is_write`` -> number. ``ucx_release
        number``: StaleHandle where the region's epoch is over. ``ucx_abandon number``: something may be on its way yet.
        """
        return {
            "ucx_hello": self._hello,
            "ucx_grant": self._grant,
            "ucx_release": self._release,
            "ucx_abandon": self._abandon,
        }

    async def _hello(self, client: Peer, arguments: list[Any]) -> None:
        pass

    async def _grant(self, client: Peer, arguments: list[Any]) -> int:
        id, stamp, is_write = arguments
        region = find_writable(self._regions, id, stamp) if is_write else self._regions.find(id, stamp)
        held = self._held.get(client)
        if held is None:
            held = self._held[client] = {}
            client.on_gone(partial(self._gone, client))
        region.enter()
        number = next(self._numbers)
        held[number] = region, stamp
        return number

    async def _release(self, client: Peer, arguments: list[Any]) -> None:
        found = self._held.get(client, {}).pop(arguments[0], None)
        if found is not None:
            region, stamp = found
            region.leave()
            self._regions.find(region.id, stamp)

    async def _abandon(self, client: Peer, arguments: list[Any]) -> None:
        found = self._held.get(client, {}).pop(arguments[0], None)
        if found is not None:
            self._worker.when_quiet(found[0].leave)

    def _gone(self, client: Peer) -> None:
        for region, _ in self._held.pop(client).values():
            self._worker.when_quiet(region.leave)
