"""Direct connections between procs of one machine, past the agent.

A call through the agent costs four wake-ups, a direct one two: 35 microseconds of processor time instead of 90, for
calls made one at a time. So a path that is used again and again, and idle in between, is moved to a direct
connection, on Linux and on one machine. Casts to few members go directly too (8 procs: half as much again); larger
ones stay with the agent, which gathers the replies of a host.

N1. Order is kept: a path moves only while it is idle, that is, when everything sent on it has been answered, and all
    of it then takes the one way. The answers to one call go back the way it came.
N2. The secret of the handshake comes through the agents, which have authenticated both ends.
N3. Deaths are told by the agent alone. What a dead proc sent directly is taken first.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgpack

from monarch_async.errors import HandshakeRefused, LinkBroken, Lost
from monarch_async.ids import format_address, host_of
from monarch_async.transport.connection import Connection
from monarch_async.transport.dial import dial, listening
from monarch_async.transport.url import Url
from monarch_async.wire.auth import Agreed

if TYPE_CHECKING:
    from monarch_async.runtime.path import Path
    from monarch_async.runtime.router import Router

#: Calls that found their path idle before it is moved.
PATIENCE = 32

#: Casts to more members than this do not move their paths.
FEW = 64

#: How long the last words of a dead proc are waited for: they are in the socket already.
_LAST_WORDS = 0.1

#: How many direct connections a proc opens; further paths stay with the agent.
_MOST = 256

#: What `Path.turns` is for a path that stays with the agent, and for one that is direct; else it counts.
RELAYED, DIRECT = -1, -2


class Direct:
    """The direct connections of one router: those it opened, by proc address, and those it was opened."""

    def __init__(self, router: "Router") -> None:
        """Open none yet."""
        self._router = router
        self._opened: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._taken: set[Connection] = set()
        self._stack = AsyncExitStack()
        self._offer: tuple[str, bytes] | None = None
        self._listening: asyncio.Task[Url] | None = None
        self._drained: dict[int, Callable[[], None]] = {}
        #: Asks a proc, through its agent, for where it listens; set by whoever can ask.
        self.ask: Callable[[int], Awaitable[Any]] | None = None
        #: Whether a host is this machine.
        self.is_here: Callable[[int], bool] = lambda host: False

    # -- the dialling side -----------------------------------------------------------------------------------------

    def consider(self, path: "Path") -> None:
        """An idle path has been used often: move it, or see to it that it can be next time."""
        connection = self._opened.get(path.dst)
        if connection is not None and not connection.is_closed:
            path.connection, path.turns = connection, DIRECT
        elif not self._is_possible(path.dst):
            path.turns = RELAYED
        else:
            path.turns = 0
            if path.dst not in self._opening:
                self._opening[path.dst] = self._router.loop.create_task(self._open(path.dst))

    def _is_possible(self, dst: int) -> bool:
        return (
            self._router.config.direct_calls
            and sys.platform == "linux"
            and self.ask is not None
            and len(self._opened) < _MOST
            and self.is_here(host_of(dst))
        )

    async def _open(self, dst: int) -> None:
        router = self._router
        assert self.ask is not None
        try:
            name, key = await self.ask(dst)
            info = msgpack.packb(router.address)
            wire, _ = await dial(Url.abstract(name), key, info)
        except (LinkBroken, HandshakeRefused, Lost):
            return  # it is gone, or does not want to: the agent's way remains
        finally:
            self._opening.pop(dst, None)
        connection = _connection(router, dst)
        connection.attach(wire)
        self._opened[dst] = connection

    # -- the listening side ----------------------------------------------------------------------------------------

    async def listen(self) -> tuple[str, bytes]:
        """Return where this proc takes direct connections, and the secret for it; listens from now on."""
        if self._offer is None:
            name, key = f"monarch-async-{os.getpid()}-{secrets.token_hex(8)}", secrets.token_bytes(32)
            self._offer = name, key
            self._listening = self._router.loop.create_task(
                self._stack.enter_async_context(
                    listening(Url.abstract(name), key, self._admit, self._take, lambda who, error: None)
                )
            )
        assert self._listening is not None
        await asyncio.shield(self._listening)
        return self._offer

    def _admit(self, info: bytes) -> bytes:
        if not isinstance(msgpack.unpackb(info), int):
            raise HandshakeRefused("unreadable introduction")
        return b""

    def _take(self, wire: asyncio.Transport, agreed: Agreed) -> None:
        src = msgpack.unpackb(agreed.info)
        router = self._router
        connection = _connection(router, src)
        self._taken.add(connection)
        connection.attach(wire, agreed.leftover)

    # -- the end of them -------------------------------------------------------------------------------------------

    def connection_down(self, connection: Connection) -> bool:
        """A socket broke; return whether it was one of these."""
        if connection in self._taken:
            self._taken.discard(connection)
            return True
        if self._opened.get(connection.address) is not connection:
            return False
        del self._opened[connection.address]
        drained = self._drained.pop(connection.address, None)
        if drained is not None:
            drained()
        return True

    def when_drained(self, dst: int, then: Callable[[], None]) -> None:
        """``dst`` is dead: call ``then`` once what it sent directly has been taken (N3)."""
        if dst not in self._opened:
            then()
            return
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self._drained.pop(dst, None)
                then()

        self._drained[dst] = once
        self._router.loop.call_later(_LAST_WORDS, once)

    def settle(self, dst: int) -> None:
        """``dst`` is about to be made anew: an old death of it that still waits for last words is told now."""
        drained = self._drained.get(dst)
        if drained is not None:
            drained()

    def lose(self, gone: Callable[[int], bool]) -> None:
        """Procs are gone: close what leads to them."""
        for dst in [dst for dst in self._opened if gone(dst)]:
            self._opened.pop(dst).close()

    async def aclose(self) -> None:
        """Close everything. Twice is fine."""
        for task in list(self._opening.values()):
            task.cancel()
        for connection in [*self._opened.values(), *self._taken]:
            connection.close()
        self._opened.clear()
        self._taken.clear()
        if self._listening is not None:
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._stack.aclose()


def _connection(router: "Router", peer: int) -> Connection:
    return Connection(router, format_address(peer), peer, None, router.config.max_frame, is_prompt=router.is_prompt)
