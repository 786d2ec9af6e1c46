"""A put that waits for room says so after a while, and who has the room: that may be the one that waits."""

import asyncio
import logging

from monarch_async.control.controller import Requests
from monarch_async.errors import Error
from monarch_async.ids import host_of
from monarch_async.mesh.status import StoreShare, fetch_status

log = logging.getLogger("monarch_async")

#: Seconds until it is said for the first time; each time after that it takes twice as long.
PATIENCE = 10.0
_MOST_NAMED = 5


async def report_waiting(
    put: "asyncio.Future[object]", what: object, requests: Requests, agent: int, own: int
) -> None:
    """``put`` has waited for `PATIENCE`: warn, again and again until it is done. ``own``: this process's address."""
    waited, pause = PATIENCE, PATIENCE
    while not put.done():
        try:
            (host,) = (await fetch_status(requests, [host_of(agent)])).hosts
        except Error:  # the agent is gone: who put it is told
            return
        if not put.done() and host.store.waiting_puts:
            store = host.store
            log.warning(
                "putting %s has waited %.0f s for room: of the store of %s, %s of %s MB are in use (store_bytes) by %s",
                what, waited, host.name, _megabytes(store.used), _megabytes(store.budget), _named(store.holders, own),
            )  # fmt: skip
        await asyncio.wait([put], timeout=pause)
        waited, pause = waited + pause, 2 * pause


def _named(holders: tuple[StoreShare, ...], own: int) -> str:
    texts = [
        f"{'this process' if share.address == own else share.name} ({share.objects}, {_megabytes(share.nbytes)} MB)"
        for share in holders[:_MOST_NAMED]
    ]
    more = len(holders) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "") if texts else "nobody, by now"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"
