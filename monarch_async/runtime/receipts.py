"""What a receiver of large payloads tells their senders."""

from typing import TYPE_CHECKING

from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CHUNKED, CREDIT, FAILED, RELEASED, pack_frame

if TYPE_CHECKING:
    from monarch_async.runtime.router import Router


class Receipts:
    """Sent by one router."""

    def __init__(self, router: "Router") -> None:
        """Nothing is owed."""
        self._router = router

    def acknowledge(self, src: int, transfer: int, received: int | None, via: Connection | None) -> None:
        """Tell a sender, the way its payload was announced, how much of that is here; None: it cannot be had so."""
        router = self._router
        way = via if via is not None and not via.is_closed else router.uplink(src)
        flags = CHUNKED | (FAILED if received is None else 0)
        way.send(pack_frame(CREDIT, flags, src, router.address, transfer, received or 0))

    def released(self, src: int, transfer: int) -> None:
        """Nobody here looks any more at a segment that was lent. On any thread."""
        self._router.call_soon(self._tell_released, src, transfer)

    def _tell_released(self, src: int, transfer: int) -> None:
        router = self._router
        if not router.is_closed:
            router.uplink(src).send(pack_frame(CREDIT, CHUNKED | RELEASED, src, router.address, transfer, 0))
