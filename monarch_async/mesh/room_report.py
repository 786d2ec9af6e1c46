"""A put that waits for room in a store, or a read of a copy that does, says so after a while, and who has the room.

That may be the program that waits itself.
"""

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
_VERBS = {"alloc": "putting", "open": "reading"}


async def report_waiting(
    asked: "asyncio.Future[object]", operation: str, what: object, requests: Requests, agent: int
) -> None:
    """``asked`` of the store has been waiting for `PATIENCE`: warn, again and again until it is answered, where it is
    room that is waited for."""
    waited, pause = PATIENCE, PATIENCE
    while not asked.done():
        try:
            (host,) = (await fetch_status(requests, [host_of(agent)])).hosts
        except Error:  # the agent is gone: who asked is told
            return
        store = host.store
        if not asked.done() and (store.waiting_puts if operation == "alloc" else store.waiting_reads):
            log.warning(
                "%s %s has waited %.0f s for room: of the store of %s, %s of %s MB are in use (store_bytes) by %s",
                _VERBS[operation], what, waited, host.name, _megabytes(store.used), _megabytes(store.budget),
                _named(store.holders, requests.own),
            )  # fmt: skip
        await asyncio.wait([asked], timeout=pause)
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
