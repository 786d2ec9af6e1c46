"""The dialling end of a session: one connection to an agent, redialled while its window lasts.

    Up         a socket is there
    Down       it broke; dialling again, with growing pauses, until ``resume_window`` after the peer was last heard
    Lost       given up; ``on_lost`` is told once

It is in *doubt* while it is Down, and while it is Up and silent for three heartbeats; ``on_doubt`` is told why, and
told nothing when that is over.

Over a unix socket there is no Down: such a connection ends only with the process at the other end. Silence counts as a
break too: a peer that has not even pinged for three heartbeats gets a new socket, which it may answer when it thaws.
Time in which this end's own loop was blocked is no silence of the peer's: nobody was listening.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgpack

from monarch_async.config import Config
from monarch_async.errors import BadFrame, HandshakeRefused, LinkBroken, WireError
from monarch_async.transport.connection import Connection, Consumer
from monarch_async.transport.dial import dial, own_host
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.link import Link

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: How far pauses differ between sessions, so that many that broke together are not dialled together.
_SPREAD = 0.25


class Session:
    """Dial ``url`` and keep the connection. ``consumer`` takes the frames; `connection_down` must call `went_down`."""

    def __init__(
        self,
        consumer: Consumer,
        url: Url | None,
        token: bytes,
        info: dict[str, Any],
        config: Config,
        on_lost: Callable[["Session", str], None],
        tls: Tls | None = None,
        address: int = 0,
        on_doubt: Callable[["Session", str], None] = lambda *_: None,
    ) -> None:
        """``info`` introduces this end: role, address, name; ``address`` is the peer's, where it is known before.

        Where ``url`` is not known yet, `locate` says it before `open`.
        """
        self.config = config
        self._token, self._tls, self._on_lost, self._on_doubt = token, tls, on_lost, on_doubt
        self.doubt = ""  #: why it is in doubt; empty: it is not
        self._loop = asyncio.get_running_loop()
        id = os.urandom(16)
        self._info = {**info, "session": id, "to": address}
        self._spread = 1 - _SPREAD * id[0] / 255
        self._redialling: asyncio.Task[None] | None = None
        self.heard_at = self._ticked_at = self._loop.time()
        self.peer: dict[str, Any] = {}
        self.local_host = ""  #: this machine's address on the way there; empty over a unix socket
        self._why = ""  # what went wrong when it was last dialled again
        #: What is sent before `open` has succeeded waits.
        self.connection = Connection(consumer, "", address, None, config.max_frame)
        self.is_lost = self._is_pinging = False
        self._url: Url | None = None
        if url is not None:
            self.locate(url)

    @property
    def url(self) -> Url:
        """Where it dials."""
        assert self._url is not None
        return self._url

    def locate(self, url: Url) -> None:
        """Say where the peer is."""
        self._url, self.connection.name = url, url.text
        if not url.path:
            self.connection.keep_by(Link())

    async def open(self, patience: float = 0.0) -> None:
        """Dial for the first time, again and again for ``patience`` seconds where that can help.

        Raises LinkBroken or HandshakeRefused.
        """
        until, pause = self._loop.time() + (0.0 if self.url.path else patience), _FIRST_PAUSE
        while True:
            try:
                wire, agreed = await dial(self.url, self._token, msgpack.packb(self._info), self._tls)
                break
            except (LinkBroken, HandshakeRefused) as error:
                if self.is_lost or _is_final(error) or self._loop.time() + pause > until:
                    raise
            await asyncio.sleep(pause * self._spread)
            pause = min(2 * pause, _LONGEST_PAUSE)
        try:
            self.peer = _parse_info(agreed.info)
        except HandshakeRefused:
            wire.abort()
            raise
        self.connection.name, self.connection.address = self.peer["name"], self.peer["address"]
        self.local_host = own_host(wire)
        self.connection.attach(wire, agreed.leftover)
        self.heard_at = self._loop.time()

    def went_down(self, error: Exception | None) -> None:
        """The socket is gone."""
        link = self.connection.link
        if self.is_lost or self._redialling is not None:
            return
        if self.connection.is_closed and isinstance(error, WireError):
            self.lose(f"what came from its agent was not understood: {error}")
            return
        if link is None or self.connection.is_closed:
            self.lose(f"its agent's connection closed{f': {error}' if error else ''}: the process is gone")
            return
        link.down(self._loop.time())
        self._redialling = self._loop.create_task(self._redial())
        self._set_doubt(f"its connection broke{f': {error}' if error else ''}")

    def tick(self) -> None:
        """Note whether the peer was heard since the last tick; every other time, say that we live.

        Called every half heartbeat.
        """
        now = self._loop.time()
        connection = self.connection
        blocked = now - self._ticked_at - self.config.heartbeat
        if blocked > 0:
            self.heard_at += blocked
        self._ticked_at = now
        if connection.was_heard:
            connection.was_heard = False
            self.heard_at = now
            if self.doubt and connection.wire is not None:
                self._set_doubt("")
        silence = now - self.heard_at
        if self.is_lost or connection.is_closed:
            return
        if silence > self.config.resume_window:
            self.lose(self._overdue(silence))
            return
        if silence > 3 * self.config.heartbeat and self._redialling is None and self.peer:
            self._set_doubt(f"not heard for {silence:.1f} s")
            if connection.link is not None:
                connection.drop()
        self._is_pinging = not self._is_pinging
        if self._is_pinging and connection.wire is not None:
            connection.ping()

    def _set_doubt(self, why: str) -> None:
        if bool(why) != bool(self.doubt) and not self.is_lost:
            self.doubt = why
            self._on_doubt(self, why)

    async def _redial(self) -> None:
        """Try until the window is over; the dial's own timeout bounds each attempt."""
        link = self.connection.link
        assert link is not None
        pause = _FIRST_PAUSE
        self._why = ""
        try:
            while self._loop.time() - self.heard_at <= self.config.resume_window:
                try:
                    info = {**self._info, "received": link.received_count}
                    wire, agreed = await dial(self.url, self._token, msgpack.packb(info), self._tls)
                except HandshakeRefused as error:
                    if _is_final(error):
                        self.lose(f"its agent came back without our session: {error.reason}")
                        return
                    self._why = str(error)
                except LinkBroken as error:
                    self._why = error.why
                else:
                    try:
                        replay = link.resume(_received(agreed.info), self._loop.time())
                    except (LinkBroken, HandshakeRefused):
                        wire.abort()
                        raise
                    self._redialling, self._why = None, ""
                    self.heard_at = self._loop.time()
                    self.connection.attach(wire, agreed.leftover, replay)
                    if self._redialling is None:  # that socket is still there
                        self._set_doubt("")
                    return
                await asyncio.sleep(pause * self._spread)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except (LinkBroken, BadFrame, HandshakeRefused) as error:
            self.lose(str(error))
        else:
            self.lose(self._overdue(self._loop.time() - self.heard_at))

    def _overdue(self, silence: float) -> str:
        window, why = self.config.resume_window, f": {self._why}" if self._why else ""
        return f"no sign of life for {silence:.1f} s (resume_window is {window:g} s){why}"

    def lose(self, reason: str) -> None:
        """Give the peer up for good, and tell ``on_lost`` why. Twice is fine."""
        if not self.is_lost:
            self.is_lost = True
            if self._redialling is not None and self._redialling is not asyncio.current_task(self._loop):
                self._redialling.cancel()
            self.connection.close()
            self._on_lost(self, reason)

    async def aclose(self) -> None:
        """Close the connection and stop dialling."""
        self.is_lost = True
        task, self._redialling = self._redialling, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.connection.close()


def _is_final(error: LinkBroken | HandshakeRefused) -> bool:
    """Whether the peer has refused this session for good."""
    return isinstance(error, HandshakeRefused) and error.side == "remote" and "session" in error.reason


def _parse_info(data: bytes) -> dict[str, Any]:
    try:
        info = msgpack.unpackb(data)
        return {"name": str(info["name"]), "address": int(info["address"]), **info}
    except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise HandshakeRefused(f"unreadable introduction: {error}") from error


def _received(data: bytes) -> int:
    """Return how many frames the peer has received, as its introduction says."""
    received = _parse_info(data).get("received")
    if not isinstance(received, int):
        raise HandshakeRefused(f"unreadable introduction: it has received {received!r} frames")
    return received
