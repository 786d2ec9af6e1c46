"""Two connected transports within one event loop: real bytes and asyncio's own rules, but no kernel.

For tests, above all in virtual time. What is written at one end arrives at the protocol of the other, later and in
order, in pieces as `Split` cuts them; the stream can be broken behind an exact byte. Otherwise as with a socket:

- What was written in one turn of the loop arrives together.
- The first `KERNEL_BYTES` that wait to be read have left the writer, as if the kernel had them; what is beyond counts
  as its write buffer, with the limits and the pauses of `asyncio.WriteTransport`.
- `close` lets what was written arrive, and ends both ends with None. `abort` and `cut` let nothing arrive that has not
  yet; `cut` ends both with ConnectionResetError.
- A closed end hears nothing more. There is no half-close.

An end whose way is `stall`-ed keeps what it writes, as a kernel does that gets no acknowledgements, and with a ``rate``
it arrives as fast as that many bytes a second allow.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

#: Cuts what would arrive at once into what arrives one after another.
Split = Callable[[bytes], list[bytes]]

KERNEL_BYTES = 64 << 10
_HIGH_WATER = 64 << 10
_END = b""


def connect(
    first: asyncio.BaseProtocol,
    second: asyncio.BaseProtocol,
    *,
    latency: float = 0.0,
    split: Split = lambda data: [data],
    extra: Mapping[str, object] | None = None,
    contexts: tuple[contextvars.Context | None, contextvars.Context | None] = (None, None),
) -> "tuple[Inproc, Inproc]":
    """Return the transports of two protocols, whose ``connection_made`` has been called.

    ``latency`` is in seconds, one way; 0 means in the next turn. ``split`` serves both directions. ``extra`` is what
    `get_extra_info` knows. ``contexts`` are those in which the protocols are called; the present one by default.
    """
    ends = Inproc(first, latency, split, extra), Inproc(second, latency, split, extra)
    for end, peer, context in zip(ends, ends[::-1], contexts, strict=True):
        end.peer = peer
        if context is not None:
            end.context = context.copy()
    for end in ends:
        end.context.run(end.get_protocol().connection_made, end)
    return ends


class Inproc(asyncio.Transport):
    """One end. Made by `connect`."""

    def __init__(
        self, protocol: asyncio.BaseProtocol, latency: float, split: Split, extra: Mapping[str, object] | None
    ) -> None:
        """Belong to the running loop."""
        super().__init__(dict(extra or {}))
        self.peer = self
        self.arrived = 0  #: how many bytes of this end's the other has been handed
        self.context = contextvars.copy_context()  #: in which the protocol is called
        self.rate: float | None = None  #: bytes a second that get through; what is on its way keeps its time
        self._loop = asyncio.get_running_loop()
        self._protocol, self._latency, self._split = protocol, latency, split
        self._flight: deque[tuple[float, bytes]] = deque()  # (when it arrives, what)
        self._pieces: deque[bytes] = deque()  # what has arrived and is not read
        self._unread = 0  # bytes of both
        self._cut_at: int | None = None
        self._free_at = 0.0  # when the last byte written so far is through
        self._is_stalled = False
        self._timer: asyncio.Handle | None = None
        self._low, self._high = _HIGH_WATER // 4, _HIGH_WATER
        self._is_closing = self._is_over = self._is_reading_paused = self._is_writing_paused = False

    # -- asyncio.Transport -----------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_reading(self) -> bool:
        return not self._is_reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self.peer._schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (4 * low if low is not None else _HIGH_WATER) if high is None else high
        self._low = self._high // 4 if low is None else low
        self._check_buffer()

    def get_write_buffer_size(self) -> int:
        return max(0, self._unread - KERNEL_BYTES)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) and not self._is_closing:
            self._unread += len(data)
            self._send(bytes(data))
            self._check_buffer()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send(_END)
            self._check_buffer()

    def abort(self) -> None:
        self._forget()
        self._send(_END)
        self._end(None)

    # -- faults ----------------------------------------------------------------------------------------------------

    def cut(self, at: int | None = None) -> None:
        """Break both ends: now, or when the other has been handed exactly ``at`` bytes of all that this one writes."""
        if at is not None and at > self.arrived:
            self._cut_at = at
            return
        for end in (self, self.peer):
            end._forget()
            end._end(ConnectionResetError("the connection was cut"))

    def stall(self) -> None:
        """Let nothing arrive at the other end until `go_on`; this end is not told."""
        self._is_stalled = True

    def go_on(self) -> None:
        """Let what was held up arrive, and what comes after it."""
        self._is_stalled = False
        self._schedule()

    # -- delivery --------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        now = self._loop.time()
        self._free_at = max(self._free_at, now)
        if self.rate is not None:
            self._free_at += len(data) / self.rate
        self._flight.append((self._free_at + self._latency, data))
        self._schedule()

    def _schedule(self) -> None:
        """See to it that what comes next is delivered; a reader that pauses is waited for."""
        if self._timer is not None or self._is_stalled:
            return
        if self._pieces and self.peer._is_reading_paused and not self.peer._is_closing:
            return
        if self._pieces or (self._flight and self._flight[0][0] <= self._loop.time()):
            self._timer = self._loop.call_soon(self._deliver, context=self.peer.context)
        elif self._flight:
            self._timer = self._loop.call_at(self._flight[0][0], self._deliver, context=self.peer.context)

    def _deliver(self) -> None:
        """Hand over the next piece; what was written together arrives together."""
        self._timer = None
        if self._is_stalled:
            return
        if not self._pieces:
            self._arrive()
        peer = self.peer
        if not peer._is_reading_paused or peer._is_closing:
            piece = self._pieces.popleft()
            is_cut = self._cut_at is not None and self.arrived + len(piece) >= self._cut_at
            if piece == _END:
                if not peer._is_closing and not cast(asyncio.Protocol, peer._protocol).eof_received():
                    peer._end(None)
            else:
                self._hand_over(piece[: self._cut_at - self.arrived] if is_cut and self._cut_at else piece)
            if is_cut:
                self.cut()
            self._check_buffer()
        self._schedule()

    def _arrive(self) -> None:
        flight, written = self._flight, []
        due = flight[0][0]
        if not self._latency:
            due = max(due, self._loop.time())  # in real time a clock may go on within one turn of the loop
        while flight and flight[0][0] <= due and flight[0][1] != _END:
            written.append(flight.popleft()[1])
        if not written:
            self._pieces.append(flight.popleft()[1])
            return
        data = b"".join(written)
        pieces = self._split(data)
        assert b"".join(pieces) == data, "a split loses nothing"
        self._pieces.extend(piece for piece in pieces if piece)

    def _hand_over(self, piece: bytes) -> None:
        self.arrived += len(piece)
        self._unread -= len(piece)
        peer = self.peer
        if not peer._is_closing:
            try:
                cast(asyncio.Protocol, peer._protocol).data_received(piece)
            except Exception as error:
                context = {"message": "data_received() failed", "exception": error, "transport": peer}
                self._loop.call_exception_handler(context)
                peer.abort()

    def _check_buffer(self) -> None:
        """Tell the protocol to pause or to go on; once closed and with nothing left for the kernel, end."""
        size = self.get_write_buffer_size()
        if self._is_closing:
            if not size:
                self._end(None)
        elif not self._is_writing_paused and size > self._high:
            self._is_writing_paused = True
            self._protocol.pause_writing()
        elif self._is_writing_paused and size <= self._low:
            self._is_writing_paused = False
            self._protocol.resume_writing()

    def _forget(self) -> None:
        """Nothing of this end's that has not arrived will."""
        self._flight.clear()
        self._pieces.clear()
        self._unread = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, error: Exception | None) -> None:
        """Tell the protocol, once; what the other end still sends is lost."""
        self._is_closing = True
        if not self._is_over:
            self._is_over = True
            self._loop.call_soon(lambda: self._protocol.connection_lost(error), context=self.context)
            self.peer._schedule()
