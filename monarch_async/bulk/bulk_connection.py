"""One socket between a `stream.BulkLink` and a `bulk_server.BulkServer`: chunks go out in turns, and come in.

At most one chunk at a time waits in the transport (its limit is 0 bytes): the socket's own buffers keep the wire busy
while the next one is prepared, and nobody needs to ask how long a view of somebody's memory is still in use. Small
frames are written at once, behind that chunk at most.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from monarch_async.bulk.intake import Frames, Intake
from monarch_async.bulk.sending import holds_memory
from monarch_async.bulk.turns import Turns
from monarch_async.errors import WireError
from monarch_async.wire.chunk import pack_header

_log = logging.getLogger(__name__)

#: Bytes sent before others on the loop have their turn.
_TURN = 4 << 20
#: How long a peer may leave a chunk unread whose memory is wanted back; then the connection ends.
_HURRY = 1.0
#: Bytes that the kernel takes at once. A chunk then costs one wake-up of the sender instead of several: the same
#: throughput on free cores, half as much again on busy ones. Larger receive buffers were no faster.
_SEND_BUFFER = 4 << 20


class Sender(Protocol):
    """Something that is sent in chunks."""

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """Return a frame, in pieces; None: nothing now. Who has something again is offered again."""
        ...

    def did_write(self) -> bool:
        """The frame is with the socket; return whether there is more right now."""
        ...


class Consumer(Frames, Protocol):
    """Who uses a connection."""

    def connection_lost(self, why: Exception | None) -> None:
        """It is over; None: the peer closed it, or we did."""
        ...


class BulkConnection(asyncio.BufferedProtocol):
    """See the module. Used on one loop."""

    def __init__(self, consumer: Consumer, name: str, max_body: int) -> None:
        """``name`` is the peer's, for the log."""
        self.name = name
        self._consumer = consumer
        self._intake = Intake(consumer, max_body)
        self._turns: Turns[Sender] = Turns()
        self._wire: asyncio.Transport | None = None
        self._why: Exception | None = None
        self._is_paused = False
        self._is_pumping = False
        self._in_flight: Sender | None = None  # whose memory the transport refers to
        self._on_release: list[Callable[[], None]] = []
        self._hurry: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def attach(self, wire: asyncio.Transport, leftover: bytes, silence: float) -> None:
        """Take over a socket that has passed the handshake. A peer silent for ``silence`` seconds is asked for."""
        self._wire = wire
        wire.pause_reading()  # how it reads depends on the protocol it starts with
        wire.set_protocol(self)
        wire.set_write_buffer_limits(1 if wire.get_extra_info("ssl_object") else 0, 0)  # TLS pauses *at* the limit
        sock = wire.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            _keep_alive(sock, silence)
            if _allows_large_buffers():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        try:
            self._intake.feed(leftover)
        except WireError as error:
            self.abort(error)
        if self._wire is not None:
            wire.resume_reading()

    @property
    def is_open(self) -> bool:
        """Whether it is there."""
        return self._wire is not None

    # -- out -------------------------------------------------------------------------------------------------------

    def send(
        self, kind: int, transfer: int, body: bytes = b"", *, start: int = 0, total: int = 0, flags: int = 0
    ) -> None:
        """Send a small frame at once; into the void where the connection is over."""
        if self._wire is not None:
            self._wire.write(pack_header(kind, transfer, start, len(body), total, 0, flags) + body)

    def offer(self, sender: Sender, is_new: bool) -> None:
        """``sender`` has something to send; ``is_new``: for the first time."""
        self._turns.join(sender, is_new)
        self._pump()

    def withdraw(self, sender: Sender) -> None:
        """Ask ``sender`` for nothing more."""
        self._turns.leave(sender)

    def when_released(self, sender: Sender, then: Callable[[], None]) -> None:
        """Call ``then`` as soon as the socket no longer refers to memory of ``sender``: now, where it does not."""
        if self._in_flight is sender:
            self._on_release.append(then)
        else:
            then()

    def hurry(self, sender: Sender) -> None:
        """The memory of ``sender`` is wanted back: a peer that does not read loses its connection."""
        if self._in_flight is sender and self._hurry is None:
            why = WireError("it reads nothing, and memory is wanted back")
            self._hurry = self._loop.call_later(_HURRY, self.abort, why)

    def _pump(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            sent = 0
            while not self._is_paused and self._wire is not None:
                if sent >= _TURN:
                    self._loop.call_soon(self._pump)
                    return
                sender = self._turns.next()
                if sender is None:
                    return
                frame = sender.next_frame()
                if frame is None:
                    continue
                if len(frame) == 1:
                    self._wire.write(frame[0])
                else:
                    self._wire.writelines(frame)
                if self._is_paused and holds_memory(frame):
                    self._in_flight = sender
                sent += sum(map(len, frame))
                if sender.did_write():
                    self._turns.join(sender, False)
        finally:
            self._is_pumping = False

    def pause_writing(self) -> None:
        """The transport keeps something."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It keeps nothing any more."""
        self._is_paused = False
        self._release()
        self._pump()

    def _release(self) -> None:
        self._in_flight = None
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None
        released, self._on_release = self._on_release, []
        for then in released:
            then()

    # -- in --------------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where the next bytes go."""
        return self._intake.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        try:
            self._intake.took(nbytes)
        except WireError as error:
            self.abort(error)

    # -- its end ---------------------------------------------------------------------------------------------------

    def abort(self, why: Exception | None = None) -> None:
        """End it at once; what was not sent is lost. Twice is fine."""
        wire = self._wire
        if wire is None:
            return
        if why is not None:
            _log.warning("bulk connection with %s ends: %s", self.name, why)
        wire.set_protocol(asyncio.Protocol())
        wire.abort()
        self.connection_lost(why)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone: nothing refers to anybody's memory any more."""
        if self._wire is None:
            return
        self._wire = None
        self._is_paused = True
        self._consumer.connection_lost(exc)
        self._release()


def _keep_alive(sock: socket.socket, silence: float) -> None:
    """Find out about a peer whose machine is gone, which no reset tells of."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", silence / 2), ("TCP_KEEPINTVL", silence / 6), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), max(1, round(value)))


@lru_cache(maxsize=1)
def _allows_large_buffers() -> bool:
    """Whether the kernel lets a process ask for as much as it may give by itself; asking for less would cost that."""
    try:
        with open("/proc/sys/net/core/wmem_max") as file:
            return int(file.read()) >= _SEND_BUFFER
    except (OSError, ValueError):
        return False
