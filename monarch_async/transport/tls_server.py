"""A listener that takes TLS, and tells who dials without it that this is what it wants.

The first byte says which of the two a dialler speaks; it is looked at, not taken, before either protocol begins. So the
accepting is done here, not by the loop's own servers.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from monarch_async.errors import HandshakeRefused
from monarch_async.transport.tls import Tls

log = logging.getLogger("monarch_async.tls")

#: With which each TLS connection begins: a record of the kind "handshake".
TLS_RECORD = b"\x16"

#: Connections taken before others on the loop have their turn.
_AT_ONCE = 64

#: How long nothing is accepted after the process has run out of descriptors.
_PAUSE = 0.5

#: How long a closed connection waits for the other end to say so too.
SHUTDOWN_TIMEOUT = 1.0

ProtocolFactory = Callable[[], asyncio.Protocol]


class TlsServer:
    """Takes connections on ``sock`` from now until `aclose`."""

    def __init__(
        self,
        sock: socket.socket,
        tls: Tls,
        patience: float,
        welcome: ProtocolFactory,
        turn_away: ProtocolFactory,
        on_refused: Callable[[str, HandshakeRefused], None],
    ) -> None:
        """Take over ``sock``. Raises ValueError where there is no certificate, or not a good one.

        Args:
            sock: bound, and listening.
            tls: settings.
            patience: seconds that a dialler may take until TLS is set up.
            welcome: makes the protocol of a connection that has TLS.
            turn_away: makes that of one without, which tells its dialler why it ends.
            on_refused: gets (who, why) where TLS does not come about.
        """
        self._loop = asyncio.get_running_loop()
        self._sock, self._tls, self._patience = sock, tls, patience
        self._welcome, self._turn_away, self._on_refused = welcome, turn_away, on_refused
        tls.listening  # noqa: B018  now, not with the first connection
        sock.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[socket.socket] = set()  # accepted, and no loop's yet
        self._pausing: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock.fileno(), self._accept)

    def _accept(self) -> None:
        """Take what waits, a few at a time."""
        for _ in range(_AT_ONCE):
            try:
                sock, who = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                log.error("cannot take connections for %g s: %s", _PAUSE, error)
                self._loop.remove_reader(self._sock.fileno())
                self._pausing = self._loop.call_later(
                    _PAUSE, self._loop.add_reader, self._sock.fileno(), self._accept
                )
                return
            sock.setblocking(False)
            self._waiting.add(sock)
            self._tls.reread()
            task = self._loop.create_task(self._take(sock, f"{who[0]}:{who[1]}"))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, sock: socket.socket, who: str) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._set_up(sock)
        except TimeoutError:
            self._on_refused(who, HandshakeRefused(f"no TLS within {self._patience:g} s", "remote"))
        except HandshakeRefused as error:
            self._on_refused(who, error)
        except OSError as error:
            self._on_refused(who, self._tls.refusal(error, who))
        finally:
            if sock in self._waiting:
                self._waiting.remove(sock)
                sock.close()

    async def _set_up(self, sock: socket.socket) -> None:
        await self._readable(sock)
        first = sock.recv(1, socket.MSG_PEEK)
        if not first:
            raise HandshakeRefused("connection closed before its first byte", "remote")
        self._waiting.remove(sock)
        if first == TLS_RECORD:
            await self._loop.connect_accepted_socket(
                self._welcome, sock, ssl=self._tls.listening, ssl_shutdown_timeout=SHUTDOWN_TIMEOUT
            )
        else:
            await self._loop.connect_accepted_socket(self._turn_away, sock)

    async def _readable(self, sock: socket.socket) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(sock.fileno(), lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(sock.fileno())

    async def aclose(self) -> None:
        """Take no more, and end what is not set up yet. Twice is fine."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        if self._pausing is not None:
            self._pausing.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for sock in self._waiting:  # of tasks that never began
            sock.close()
        self._waiting.clear()
        self._sock.close()
