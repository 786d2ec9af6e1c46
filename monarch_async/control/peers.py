"""The other agents, as one agent knows them: addresses told by clients, sessions dialled on first use."""

import asyncio
import logging
from collections.abc import Callable

from monarch_async.config import Config
from monarch_async.errors import HandshakeRefused, LinkBroken
from monarch_async.ids import address, host_of
from monarch_async.transport.connection import Connection, Consumer
from monarch_async.transport.session import Session
from monarch_async.transport.url import Url

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
    ) -> None:
        """``own`` is this agent's address."""
        self._consumer, self._name, self._own, self._token, self._config = consumer, name, own, token, config
        self._on_lost = on_lost
        self._known: dict[int, tuple[str, str]] = {}  # name and URL by host
        self._sessions: dict[int, Session] = {}
        self._dials: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def learn(self, known: dict[int, tuple[str, str]]) -> None:
        """Take the names of other hosts and where their agents listen."""
        self._known.update({host: (name, url) for host, (name, url) in known.items() if host != host_of(self._own)})

    def find(self, host: int) -> Connection | None:
        """Return the connection to a host's agent; the first use dials, and what is sent meanwhile waits."""
        session = self._sessions.get(host)
        if session is not None:
            return session.connection
        if host not in self._known or self._is_closed:
            return None
        _, url = self._known[host]
        info = {"role": "agent", "address": self._own, "name": self._name}
        session = Session(
            self._consumer, Url.parse(url), self._token, info, self._config, self._lost, address=address(host, 0)
        )
        self._sessions[host] = session
        dial = asyncio.get_running_loop().create_task(self._dial(session))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)
        return session.connection

    async def _dial(self, session: Session) -> None:
        try:
            await session.open(self._config.resume_window)
        except (LinkBroken, HandshakeRefused) as error:
            session.lose(f"{self._name} cannot reach it: {error}")

    def _lost(self, session: Session, reason: str) -> None:
        host = next((host for host, known in self._sessions.items() if known is session), None)
        if host is None:  # given up before: another may be in its place by now
            return
        del self._sessions[host]
        session.connection.address = address(host, 0)  # whoever answered at that URL
        name, _ = self._known[host]
        log.warning("lost the agent of %s: %s", name, reason)
        session.connection.close()
        self._on_lost(session.connection, name, reason)

    def lose(self, host: int, reason: str) -> None:
        """A host has given us up, or is known to be gone."""
        session = self._sessions.get(host)
        if session is not None:
            session.lose(reason)

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
        for dial in list(self._dials):
            dial.cancel()
        if self._dials:
            await asyncio.wait(self._dials)
        for session in list(self._sessions.values()):
            await session.aclose()
