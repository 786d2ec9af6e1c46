"""Who has dialled in to an agent: clients and other agents, their sessions and leases.

G1. A session is resumed only by whoever holds its id, within its lease; otherwise its dialler is told that it is gone.
G2. A guest that is not heard for longer than ``resume_window`` is expired, by this machine's own clock.
G3. An agent that was itself frozen for so long expires all its guests when it thaws, before it lets anybody in (again)
    or notes who was heard: they have given it up. ``on_frozen`` is told.
G4. A guest on a unix socket may be silent: the kernel closes the socket when it ends, so it is merely stopped (in a
    debugger, or by a terminal that scrolls no further), and goes on some time.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from monarch_async.config import Config
from monarch_async.errors import HandshakeRefused, LinkBroken
from monarch_async.transport.connection import Connection, Consumer
from monarch_async.transport.dial import own_host
from monarch_async.wire.auth import Agreed
from monarch_async.wire.link import Link

#: Why one who says that this is his first session is not let in.
ALREADY = "has a session here already"

#: Why one who has left is not expected back.
GOODBYE = "it said goodbye"

log = logging.getLogger("monarch_async.agent")


class Guest:
    """One that dialled in; ``role`` is client, agent or observer."""

    __slots__ = ("came_to", "connection", "heard_at", "role", "session")

    def __init__(self, session: bytes, connection: Connection, role: str, now: float, came_to: str = "") -> None:
        """It has just been heard. ``came_to``: the address of this machine that it dialled; empty for a unix socket."""
        self.session, self.connection, self.role, self.heard_at = session, connection, role, now
        self.came_to = came_to

    def facts(self, now: float) -> tuple[str, str, float, int]:
        """Return name, role, for how long it is not connected, and address: what the status shows."""
        away = 0.0 if self.connection.wire is not None else max(now - self.heard_at, 0.001)
        return self.connection.name, self.role, away, self.connection.address

    def may_return(self, why: str) -> bool:
        """Return whether one that is gone for this reason may dial in again, as the same program."""
        return self.role == "client" and self.connection.link is not None and why != GOODBYE


class Guests:
    """The guests of one agent. ``on_joined`` and ``on_expired`` (with the reason) are told."""

    def __init__(
        self,
        consumer: Consumer,
        name: str,
        address: int,
        config: Config,
        clock: Callable[[], float],
        on_joined: Callable[[Guest], None],
        on_expired: Callable[[Guest, str], None],
        on_frozen: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``consumer`` takes their frames; ``name`` and ``address`` are the agent's own."""
        self._consumer, self._config, self._clock = consumer, config, clock
        #: What whoever dials in is told of this agent.
        self.introduction: dict[str, Any] = {"role": "agent", "name": name, "address": address, "pid": os.getpid()}
        self._on_joined, self._on_expired, self._on_frozen = on_joined, on_expired, on_frozen
        self._ticked_at = clock()
        self._is_pinging = False
        self._guests: dict[bytes, Guest] = {}
        self._admitted: tuple[dict[str, Any], Guest | None] | None = None

    @property
    def window(self) -> float:
        """After how many seconds of silence a guest is gone."""
        return self._config.resume_window

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._guests.values()))

    def facts(self) -> list[tuple[str, str, float, int]]:
        """Return what the status shows of each: see `Guest.facts`."""
        return [guest.facts(self._clock()) for guest in self]

    def admit(self, info: bytes) -> bytes:
        """Answer an authenticated dialler's introduction; raises HandshakeRefused."""
        self._check_frozen()
        try:
            said = msgpack.unpackb(info)
            who = {
                "session": bytes(said["session"]),
                "role": str(said["role"]),
                "address": int(said["address"]),
                "name": str(said["name"]),
                "received": said.get("received"),
            }
            to = int(said.get("to", 0))
        except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise HandshakeRefused(f"unreadable introduction: {error!r}") from error
        if to not in (0, self.introduction["address"]):
            raise HandshakeRefused("no such session: the agent that is meant is gone, and this one in its place")
        guest = self._guests.get(who["session"])
        answer = dict(self.introduction)
        if guest is not None:
            link = guest.connection.link
            if link is None or (who["received"] is None and link.received_count):
                raise HandshakeRefused("this session is in use")
            who["received"] = who["received"] or 0  # None: its first socket broke before it heard of us
            guest.connection.drop()
            link.down(self._clock())
            answer["received"] = link.received_count
        elif who["received"] is not None:
            raise HandshakeRefused("no such session: its lease has run out, or this agent was restarted")
        elif said.get("is_first") and any(known.connection.address == who["address"] for known in self):
            raise HandshakeRefused(f"{who['name']} {ALREADY}")  # its own mistake: the session it has goes on
        self._admitted = who, guest
        return msgpack.packb(answer)

    def agreed(self, wire: asyncio.Transport, agreed: Agreed) -> None:
        """Take over a socket whose handshake `admit` has just passed."""
        assert self._admitted is not None
        (who, guest), self._admitted = self._admitted, None
        if guest is not None:
            self._resume(guest, who["received"], wire, agreed.leftover)
            return
        self.leave(who["address"], "it has come back with a new session")  # the old end is not to be its own
        sock = wire.get_extra_info("socket")
        link = None if sock is not None and sock.family == socket.AF_UNIX else Link(peer=who["name"])
        connection = Connection(self._consumer, who["name"], who["address"], link, self._config.max_frame)
        guest = Guest(who["session"], connection, who["role"], self._clock(), own_host(wire))
        self._guests[guest.session] = guest
        log.info("%s joined (%s)", connection.name, guest.role)
        self._on_joined(guest)
        connection.attach(wire, agreed.leftover)

    def _resume(self, guest: Guest, received: int, wire: asyncio.Transport, leftover: bytes) -> None:
        link = guest.connection.link
        assert link is not None
        try:
            replay = link.resume(received, self._clock())
        except LinkBroken as error:
            log.warning("%s", error)
            wire.abort()
            return
        guest.heard_at = self._clock()
        if guest.role == "client":
            log.info("%s is back", guest.connection.name)
        guest.connection.attach(wire, leftover, replay)

    def refused(self, who: str, error: HandshakeRefused) -> None:
        """Log who was not let in, and why."""
        log.warning("refused a connection from %s: %s", who, error.reason)

    def connection_down(self, connection: Connection) -> bool:
        """A socket broke; return whether it was a guest's. One with a link may resume, the others are gone."""
        for guest in self:
            if guest.connection is connection:
                if connection.link is None or connection.is_closed:
                    self._expire(guest, "its connection closed")
                else:
                    connection.link.down(self._clock())
                    if guest.role == "client":
                        log.info(
                            "%s: its connection broke; its procs here end unless it is back within %g s",
                            connection.name,
                            self._config.resume_window,
                        )
                return True
        return False

    def leave(self, address: int, why: str = GOODBYE) -> None:
        """A guest says goodbye, or is known to be gone: there is no lease to wait for."""
        for guest in self:
            if guest.connection.address == address:
                self._expire(guest, why)

    def tick(self) -> None:
        """Expire who was silent for too long; every other time, say that this end lives.

        Called every half heartbeat.
        """
        self._check_frozen()
        self._ticked_at = now = self._clock()
        self._is_pinging = not self._is_pinging
        window = self._config.resume_window
        for guest in self:
            silence = 0.0 if guest.connection.link is None else now - guest.heard_at
            if silence > window:
                self._expire(guest, f"not heard for {silence:.1f} s")
                continue
            if guest.connection.was_heard:
                guest.connection.was_heard = False
                guest.heard_at = now
            if self._is_pinging and guest.connection.wire is not None:
                guest.connection.ping()

    def _check_frozen(self) -> None:
        """G3."""
        now = self._clock()
        frozen = now - self._ticked_at
        if frozen > self._config.resume_window:
            self._ticked_at = now
            why = f"this agent was frozen for {frozen:.1f} s"
            for guest in self:
                self._expire(guest, why)
            self._on_frozen(why)

    def _expire(self, guest: Guest, why: str) -> None:
        if self._guests.pop(guest.session, None) is None:
            return  # gone already: the end of another took it along
        guest.connection.close()
        self._on_expired(guest, why)

    def close(self) -> None:
        """Close every connection."""
        for guest in self:
            guest.connection.close()
        self._guests.clear()
