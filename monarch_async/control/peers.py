"""The other agents, as one agent knows them: sessions opened on first use, to where a client says that they are.

Nobody is told of hosts it does not talk to: at the first use of one the clients here are asked where it is, and what is
sent meanwhile waits. So a host that joins costs nothing anywhere else.

Another agent's *epoch* counts how often it was frozen for so long that it gave up all its sessions. A session of an
earlier epoch is of no use, even where it does not know yet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from monarch_async.config import Config
from monarch_async.errors import Error, HostLost
from monarch_async.ids import address, host_of
from monarch_async.transport.connection import Connection, Consumer
from monarch_async.transport.session import Session
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url

#: Why one is gone that has said so: in order, as at the end of a program.
ENDED = "its agent has ended"

log = logging.getLogger("monarch_async.agent")


class Peers:
    """``on_lost(connection, name, reason)`` is told once a host is given up."""

    def __init__(
        self,
        consumer: Consumer,
        name: str,
        own: int,
        token: bytes,
        config: Config,
        on_lost: Callable[[Connection, str, str], None],
        where: Callable[[int], Awaitable[tuple[str, str]]],
        tls: Tls | None = None,
    ) -> None:
        """``own`` is this agent's address; ``tls`` by the settings where it is not given.

        ``where`` finds name and URL of a host. It raises Lost where nobody knows one that lives.
        """
        self._tls = tls or Tls(config)
        self._consumer, self._name, self._own, self._token, self._config = consumer, name, own, token, config
        self._on_lost, self._where = on_lost, where
        self._known: dict[int, tuple[str, str]] = {}  # name and URL by host; no URL: to be asked for
        self._sessions: dict[int, Session] = {}
        self._dials: set[asyncio.Task[None]] = set()
        self._calm: dict[int, list[asyncio.Future[None]]] = {}  # who waits for a session that is in doubt
        self._is_closed = False

    def find(self, host: int) -> Connection | None:
        """Return the connection to the agent of a host that is known; the first use dials."""
        session = self._sessions.get(host)
        if session is not None:
            return session.connection
        _, url = self._known.get(host, ("", ""))
        return self.seek(host) if url else None

    def seek(self, host: int) -> Connection | None:
        """Return the connection to the agent of any host: what is sent waits until somebody says where that is."""
        session = self._sessions.get(host)
        if session is not None:
            return session.connection
        if self._is_closed:
            return None
        _, url = self._known.get(host, ("", ""))
        session = self._session(host, Url.parse(url) if url else None)
        self._sessions[host] = session
        dial = asyncio.get_running_loop().create_task(self._dial(host, session, not url))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)
        return session.connection

    def _session(self, host: int, url: Url | None) -> Session:
        info: dict[str, Any] = {"role": "agent", "address": self._own, "name": self._name}
        return Session(
            self._consumer, url, self._token, info, self._config, self._lost, self._tls, address(host, 0), self._doubt
        )

    async def _dial(self, host: int, session: Session, must_ask: bool) -> None:
        try:
            if must_ask:
                self._known[host] = known = await self._where(host)
                session.locate(Url.parse(known[1]))
            self._tls.check(session.url)
            await session.open(self._config.resume_window)
        except HostLost as error:
            self._known[host] = error.host, ""
            session.lose(error.reason)
        except (Error, ValueError) as error:
            session.lose(f"{self._name} cannot reach it: {error}")

    def _lost(self, session: Session, reason: str) -> None:
        host = next((host for host, known in self._sessions.items() if known is session), None)
        if host is None:  # given up before: another may be in its place by now
            return
        del self._sessions[host]
        session.connection.address = address(host, 0)  # whoever answered at that URL
        name, _ = self._known.get(host, (f"{host:08x}", ""))
        self._known[host] = name, ""  # who uses it again asks where it is by then
        log.log(logging.INFO if reason == ENDED else logging.WARNING, "lost the agent of %s: %s", name, reason)
        session.connection.close()
        self._on_lost(session.connection, name, reason)
        self._calm_down(host)

    def _doubt(self, session: Session, why: str) -> None:
        if not why:
            self._calm_down(host_of(session.connection.address))

    def _calm_down(self, host: int) -> None:
        for waiting in self._calm.pop(host, ()):
            if not waiting.done():
                waiting.set_result(None)

    def lose(self, host: int, reason: str) -> None:
        """A host has given us up, or is known to be gone."""
        session = self._sessions.get(host)
        if session is not None:
            session.lose(reason)

    def lose_all(self, reason: str) -> None:
        """This agent was frozen for so long that all others have given it up."""
        for host in list(self._sessions):
            self.lose(host, reason)

    def forget(self, host: int) -> None:
        """A client says that a host is gone for it. A session that lives goes on: others may use it."""
        if host not in self._sessions and host in self._known:
            self._known[host] = self._known[host][0], ""

    async def renew(self, host: int, epoch: int) -> None:
        """A host has come back, in that epoch: wait until what is sent there from now on is sent to its new life."""
        session = self._sessions.get(host)
        if session is not None and session.peer and session.peer.get("epoch", 0) != epoch:
            session.lose("it was frozen, and has given up its sessions")
        await self._wait_calm(host)

    async def wait_calm(self) -> None:
        """Wait until no session is in doubt: each is heard again, or lost."""
        for host in list(self._sessions):
            await self._wait_calm(host)

    async def _wait_calm(self, host: int) -> None:
        session = self._sessions.get(host)
        if session is not None and session.doubt:
            waiting = asyncio.get_running_loop().create_future()
            self._calm.setdefault(host, []).append(waiting)
            await waiting

    def connection_down(self, connection: Connection, error: Exception | None) -> bool:
        """A socket broke; return whether it was a peer's."""
        for session in self._sessions.values():
            if session.connection is connection:
                session.went_down(error)
                return True
        return False

    def tick(self) -> None:
        """See `Session.tick`."""
        for session in list(self._sessions.values()):
            session.tick()

    async def aclose(self) -> None:
        """Close every session."""
        self._is_closed = True
        for host in list(self._calm):
            self._calm_down(host)
        for dial in list(self._dials):
            dial.cancel()
        if self._dials:
            await asyncio.wait(self._dials)
        for session in list(self._sessions.values()):
            await session.aclose()
