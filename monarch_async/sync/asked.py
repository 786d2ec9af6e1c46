"""One request to a home: sent when it is made, undone when who asked is cancelled."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from monarch_async.control.controller import Requests
from monarch_async.control.refusal import as_refusal
from monarch_async.errors import Closed
from monarch_async.runtime.router import Router
from monarch_async.wire.payload import Buffer


class Asked(asyncio.Future[Any]):
    """The answer, to be awaited by `outcome`. A `runtime.call.Pending`.

    Where it ``stays`` it remains with the router after its answer, until `forget`: so it hears that the home is lost.
    """

    __slots__ = ("_home", "_key", "_requests", "_router", "_stays", "call", "is_carrier", "lost")

    def __init__(self, router: Router, requests: Requests, home: int, key: str, stays: bool) -> None:
        """Not sent yet."""
        super().__init__(loop=router.loop)
        self._router, self._requests, self._home, self._key, self._stays = router, requests, home, key, stays
        self.call = 0
        self.is_carrier = True  #: somebody waits, and is told of a loss
        self.lost: Exception | None = None  #: why what was granted is gone

    def send(self, request: bytes) -> None:
        """Send it. Raises Closed where this process has left its hosts."""
        self.call = self._router.control(self._home, request, self)

    async def outcome(self) -> Any:
        """Wait for the answer. Cancelled, it is as if nothing had been asked: what is granted meanwhile goes back.

        Raises what the home refuses with, and HostLost.
        """
        try:
            return await self
        except asyncio.CancelledError:
            self.withdraw()
            raise

    def unawaited(self) -> "Asked":
        """Return it, for who may not look at the answer: a refusal that nobody sees is fine."""
        self.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        return self

    def withdraw(self) -> None:
        """Whatever it was answered with, or will be, is not wanted."""
        self.forget()
        with contextlib.suppress(Closed):
            self._requests.post(self._home, "sync", "cancel", self._key, self.call)

    def forget(self) -> None:
        """Expect nothing more."""
        if self.done():
            self._router.pending.pop(self.call, None)

    # -- runtime.call.Pending --------------------------------------------------------------------------------------

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        """The answer."""
        self.is_carrier = False
        if self.done():
            return True
        value = msgpack.unpackb(skeleton, strict_map_key=False)
        error = as_refusal(value)
        if error is not None:
            self.set_exception(error)
            return True
        self.set_result(value)
        return not self._stays

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        """Whether the home is gone."""
        return gone(self._home)

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        """The home is gone."""
        self.lost = error
        if not self.done():
            self.set_exception(error)
        return True
