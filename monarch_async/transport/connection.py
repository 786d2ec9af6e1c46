"""A connection: frames to and from one peer, over one socket at a time.

Measured on this path: a uvloop protocol with plain ``transport.write`` beats ``add_reader`` with ``recv`` and ``send``
by half. Each write is a system call, though, which wakes the peer: so the first frame of a turn is written at once, and
what follows in the same turn is joined into one write at its end; not so in workers, which may be killed by what they
run before the turn ends, and whose last words count. With TLS, where each is a record, all are joined.

Received bytes are handed to the consumer as they come, with as many whole frames as there are: the consumer walks
the headers itself (it decides by them anyway) and says how far it got. What is left of a frame waits here; a large
frame is kept as a list of pieces, so that nothing is copied twice.

Where the peer is on another machine the connection has a `Link`: the socket may drop and be replaced, and frames are
kept until acknowledged. Bulk goes through `bulk`: its chunks are written only while the socket takes them, so that
other frames overtake a large payload. So do they overtake chunks that are only passed on, where the connection has a
link; but a death stays behind what the dead proc had sent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from monarch_async.errors import BadFrame, FrameTooLarge, WireError
from monarch_async.transport.turns import Passed, bound_unsent, takes_turn
from monarch_async.wire.frame import ACK, HEADER, HEADER_SIZE, PIECEWISE, PING, U32, pack_frame
from monarch_async.wire.link import Link

Pieces = Sequence[bytes | memoryview]

#: Bytes of a frame that is rather written by itself than copied.
_LARGE = 32 << 10


class Consumer(Protocol):
    """Who takes the frames of a connection."""

    def feed(self, connection: "Connection", data: bytes) -> tuple[int, int]:
        """Take the whole frames at the start of ``data``; return (bytes taken, frames taken).

        PING and ACK are handed to `Connection.take_link_frame` and not counted.
        """
        ...

    def feed_large(self, connection: "Connection", pieces: list[bytes]) -> None:
        """Take one large frame, in pieces; the first holds at least the header."""
        ...

    def connection_down(self, connection: "Connection", error: Exception | None) -> None:
        """The socket is gone. With a link the session goes on when `Connection.attach` brings another."""
        ...


class BulkSource(Protocol):
    """Something large that is sent in chunks."""

    def next_chunk(self) -> Pieces | None:
        """Return the next frame in pieces, or None where it must wait for credit or is done."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether all of it was handed out."""
        ...


class Connection(asyncio.Protocol):
    """One peer. ``address`` is its proc address (an agent's ends in 0); ``name`` is for messages."""

    __slots__ = (
        "_bulk", "_held", "_is_prompt", "_joined", "_loop", "_missing", "_pieces", "_rest", "_write", "address",
        "consumer", "is_closed", "is_writable", "link", "max_frame", "name", "send", "sent_to", "was_heard", "wire",
    )  # fmt: skip

    def __init__(
        self, consumer: Consumer, name: str, address: int, link: Link | None = None, max_frame: int = 16 << 20,
        *, is_prompt: bool = False,
    ) -> None:  # fmt: skip
        """Take who gets the frames, and a link where the session shall outlive its sockets.

        ``is_prompt``: every frame is to have left when `send` returns, where that is possible.
        """
        self._is_prompt = is_prompt
        self.consumer, self.name, self.address, self.link, self.max_frame = consumer, name, address, link, max_frame
        self.wire: asyncio.Transport | None = None
        self.is_closed = False
        self.is_writable = True
        self.was_heard = False  #: set by every read; whoever watches for silence resets it
        self.sent_to: set[int] = set()  #: where frames of this peer went: whose deaths it must hear of
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._pieces: list[bytes] = []
        self._missing = 0
        self._joined: list[bytes | memoryview] = []
        self._held: deque[bytes] = deque()
        self._bulk: deque[BulkSource] = deque()
        self._write: Callable[[Any], None] = self._joined.append  # what comes before the first socket waits
        #: Send one frame. Never waits: what bounds it are the senders' windows.
        self.send: Callable[[bytes], None] = self._send_linked if link is not None else self._write

    @property
    def has_room(self) -> bool:
        """Whether it takes more without keeping it in memory: for senders that can wait."""
        return self.is_writable and not self._held and (self.link is None or not self.link.is_full)

    # -- the socket under it ---------------------------------------------------------------------------------------

    def keep_by(self, link: Link) -> None:
        """Let the session outlive its sockets, from now on: before the first of them."""
        early, offset = b"".join(self._joined), 0
        self._joined.clear()
        self.link, self.send = link, self._send_linked
        while offset < len(early):
            (length,) = U32.unpack_from(early, offset)
            self.send(early[offset : offset + length])
            offset += length

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """An inherited socket needs no handshake."""
        self.attach(cast(asyncio.Transport, transport))  # uvloop's does not derive from it

    def attach(self, wire: asyncio.Transport, leftover: bytes = b"", replay: Sequence[bytes] = ()) -> None:
        """Go on over ``wire``: send ``replay`` first, and take ``leftover`` as its first bytes."""
        if self.is_closed:  # given up while it was being dialled
            wire.abort()
            return
        if wire.get_protocol() is not self:
            wire.set_protocol(self)
        bound_unsent(wire, self.link is not None)
        self.wire = wire
        self.is_writable = True
        self._rest, self._pieces, self._missing = b"", [], 0
        early = [*self._joined]
        self._joined.clear()
        may_write = type(self._loop).__module__.startswith("uvloop") and wire.get_extra_info("ssl_object") is None
        at_once = wire.write if self._is_prompt else self._write_first
        self._write = at_once if may_write else self._join
        if self.link is None:
            self.send = self._write
        for frame in replay or early:
            self._write(frame)
        self._flush_held()
        if leftover:
            self.data_received(leftover)
        if not wire.is_reading() and not wire.is_closing():
            wire.resume_reading()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the consumer; a connection without a link is then closed for good."""
        self.wire = None
        self._joined.clear()
        self._write = self._drop
        if self.link is None and not self.is_closed:
            self._shut()
        self.consumer.connection_down(self, exc)

    def drop(self, error: Exception | None = None) -> None:
        """Give up the socket at once, unsent bytes included; a link may resume. Late words of it are not heard."""
        wire = self.wire
        if wire is not None:
            wire.set_protocol(asyncio.Protocol())
            wire.abort()
            self.connection_lost(error)

    def close(self) -> None:
        """Send what was handed over, then close for good. Closing twice is fine."""
        if self.is_closed:
            return
        for source in [source for source in self._bulk if isinstance(source, Passed)]:
            self.send(source.frame)
        self._flush_joined()
        self._shut()
        if self.wire is not None:
            self.wire.close()

    def _shut(self) -> None:
        """For good: others may refer to this for long, so keep nothing."""
        self.is_closed = True
        self.send = self._drop
        self._bulk.clear()
        self._held.clear()
        self._rest, self._pieces, self._missing = b"", [], 0
        if self.link is not None:
            self.link.give_up(self._loop.time())

    # -- out -------------------------------------------------------------------------------------------------------

    def send_pieces(self, pieces: Pieces) -> None:
        """Send one frame that is in pieces, without joining them where no link must keep it. Chunks take their turn."""
        if self.link is None:
            for piece in pieces:
                self._write(piece)
        elif self._is_behind and takes_turn(pieces[0]):
            self._bulk.append(Passed(b"".join(pieces)))
        else:
            self.send(b"".join(pieces))

    def send_run(self, frames: Sequence[bytes]) -> None:
        """Send several frames in one write; with a link, chunks and deaths among them take their turn."""
        link = self.link
        if link is not None:
            if self.is_closed:
                return
            if self._is_behind:
                self._bulk.extend([Passed(frame) for frame in frames if takes_turn(frame)])
                frames = [frame for frame in frames if not takes_turn(frame)]
            if self._held or link.is_full:
                self._held.extend(frames)
                return
            link.push_run(frames)
        self._write(b"".join(frames))

    @property
    def _is_behind(self) -> bool:
        """Whether chunks have to wait, which somebody else has sent: `pause_writing` cannot stop him."""
        return not self.is_writable or bool(self._bulk)

    def bulk(self, source: BulkSource) -> None:
        """Send a large payload chunk by chunk, between other frames."""
        if self.is_closed:
            return
        self._bulk.append(source)
        self._pump()

    def resume_bulk(self) -> None:
        """Go on after credit came for a source."""
        self._pump()

    def pause_writing(self) -> None:
        """Stop the bulk lane: the socket is behind."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Go on with the bulk lane."""
        self.is_writable = True
        self._pump()

    def _pump(self) -> None:
        bulk, waiting = self._bulk, 0
        while bulk and self.is_writable and self.wire is not None and waiting < len(bulk):
            source = bulk[0]
            pieces = source.next_chunk()
            if pieces is None:
                waiting += 1
            else:
                waiting = 0
                if self.link is not None:
                    self.send(b"".join(pieces))
                else:
                    self.send_pieces(pieces)
                self._flush_joined()  # so that the socket can say stop
            if source.is_done:
                bulk.popleft()
            else:
                bulk.rotate(-1)

    def _send_linked(self, frame: bytes) -> None:
        link = self.link
        assert link is not None
        if self._held or link.is_full:
            self._held.append(frame)
            return
        link.push(frame)
        self._write(frame)

    def _flush_held(self) -> None:
        link, held = self.link, self._held
        while held and link is not None and not link.is_full:
            frame = held.popleft()
            link.push(frame)
            self._write(frame)

    def _write_first(self, frame: bytes | memoryview) -> None:
        """The first frame of a turn: it goes at once, the others when the turn ends."""
        assert self.wire is not None
        self.wire.write(frame)
        self._write = self._write_more
        if self.link is None:
            self.send = self._write
        self._loop.call_soon(self._end_turn, self.wire)

    def _write_more(self, frame: bytes | memoryview) -> None:
        """Another one in the same turn. Large ones are not copied."""
        self._joined.append(frame)
        if len(frame) >= _LARGE:
            self._flush_joined()

    def _end_turn(self, wire: asyncio.Transport) -> None:
        if self.wire is not wire:  # another has been attached, or none
            return
        self._flush_joined()
        self._write = self._write_first
        if self.link is None and not self.is_closed:
            self.send = self._write

    def _join(self, frame: bytes | memoryview) -> None:
        joined = self._joined
        joined.append(frame)
        if len(joined) == 1:
            self._loop.call_soon(self._flush_joined)

    def _flush_joined(self) -> None:
        joined = self._joined
        if joined and self.wire is not None:
            large = joined.pop() if len(joined[-1]) >= _LARGE else None
            if joined:
                self.wire.write(b"".join(joined))
                joined.clear()
            if large is not None:
                self.wire.write(large)

    def _drop(self, frame: bytes | memoryview) -> None:
        """No socket: a link has kept the frame, and without one the peer is gone and its death is being told."""

    # -- in --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Hand whole frames to the consumer; a frame that breaks the rules closes the connection."""
        if self.is_closed:
            return
        self.was_heard = True
        try:
            self._receive(data)
        except WireError as error:
            self._shut()
            self.drop(error)

    def _receive(self, data: bytes) -> None:
        if self._pieces:
            if len(data) < self._missing:
                self._pieces.append(data)
                self._missing -= len(data)
                return
            missing, pieces = self._missing, self._pieces
            pieces.append(data[:missing])
            self._pieces, self._missing = [], 0
            self.consumer.feed_large(self, pieces)
            self._count(1, sum(map(len, pieces)))
            data = data[missing:]
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        taken, frames = self.consumer.feed(self, data)
        if frames:
            self._count(frames, taken)
        if taken < len(data):
            self._keep(data[taken:] if taken else data)

    def _keep(self, rest: bytes) -> None:
        if len(rest) >= 4:
            (length,) = U32.unpack_from(rest)
            if length > self.max_frame:
                raise FrameTooLarge(length, self.max_frame)
            if length < HEADER_SIZE:
                raise BadFrame(f"a length of {length} is less than a header")
            if length > PIECEWISE and len(rest) >= HEADER_SIZE:
                self._pieces, self._missing = [rest], length - len(rest)
                return
        self._rest = rest

    def _count(self, frames: int, nbytes: int) -> None:
        link = self.link
        if link is not None and not self.is_closed and link.received(frames, nbytes):
            self.send_ack()

    # -- the link's own frames -------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Say that this end lives, and what it has received so far."""
        if self.link is not None:
            self.send_ack()
        else:
            self._write(pack_frame(PING, 0, self.address, 0, 0, 0))

    def send_ack(self) -> None:
        """Acknowledge everything received."""
        assert self.link is not None
        self._write(pack_frame(ACK, 0, self.address, 0, 0, self.link.take_ack()))

    def take_link_frame(self, kind: int, data: bytes, offset: int) -> None:
        """Take a PING or ACK that begins at ``offset``. Raises BadFrame on any other kind."""
        if kind != PING and kind != ACK:
            raise BadFrame(f"unknown kind {kind}")
        if kind == ACK and self.link is not None:
            self.link.acked(HEADER.unpack_from(data, offset)[7])
            if self._held:
                self._flush_held()
