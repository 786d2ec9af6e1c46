"""A connection: frames out of any split of bytes, limits, the bulk lane, links over successive sockets."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import BadFrame, FrameTooLarge
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import (
    ACK,
    CALL,
    CHUNK,
    EXITED,
    HEADER,
    LEASE,
    PIECEWISE,
    PING,
    U32,
    frame_length,
    pack_frame,
)
from monarch_async.wire.link import Link

MAX_FRAME = 1 << 20


class Collector:
    """A consumer that keeps every frame, whole."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.ends: list[Exception | None] = []

    def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
        offset = count = 0
        while (length := frame_length(data, offset)) is not None and offset + length <= len(data) and length >= 40:
            kind = data[offset + 4]
            if kind > LEASE:
                connection.take_link_frame(kind, data, offset)
            else:
                self.frames.append(data[offset : offset + length])
                count += 1
            offset += length
        return offset, count

    def feed_large(self, connection: Connection, pieces: list[bytes]) -> None:
        self.frames.append(b"".join(pieces))

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        self.ends.append(error)


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self._written: list[bytes] = []
        self.protocol: asyncio.BaseProtocol = asyncio.Protocol()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written.append(bytes(data))

    @property
    def written(self) -> list[bytes]:
        """What was written at the end of this turn."""
        if isinstance(self.protocol, Connection) and self.protocol.wire is self:
            self.protocol._flush_joined()
        return self._written

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_reading(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    @property
    def data(self) -> bytes:
        return b"".join(self.written)


def frames_in(data: bytes) -> list[bytes]:
    collector, found = Collector(), 0
    while found < len(data):
        length = frame_length(data, found)
        assert length
        collector.frames.append(data[found : found + length])
        found += length
    return collector.frames


def frame(n: int, size: int = 0, kind: int = CALL) -> bytes:
    return pack_frame(kind, 0, 1, 2, 3, n, b"", bytes([n % 256]) * size)


def connected(link: Link | None = None) -> tuple[Connection, Collector, Wire]:
    collector, wire = Collector(), Wire()
    connection = Connection(collector, "peer", 7, link, MAX_FRAME)
    connection.attach(wire)
    return connection, collector, wire


def on_loop(test: Callable[[], None]) -> None:
    """Run a synchronous body on a loop, for tests whose many examples are given by hypothesis."""

    async def body() -> None:
        test()

    asyncio.run(body())


# -- in --------------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([0, 1, 25, 1000, PIECEWISE - 40, PIECEWISE - 39, PIECEWISE + 1, 200_000]), max_size=8)


@settings(max_examples=150, deadline=None)
@given(SIZES, st.data())
def test_any_split_of_the_bytes_gives_the_same_frames(sizes: list[int], data: st.DataObject) -> None:
    frames = [frame(n, size) for n, size in enumerate(sizes)]
    stream = b"".join(frames)
    edges = [0, 1, 3, 4, 5, 39, 40, 41]
    near = [start + edge for start in _starts(frames) for edge in edges if start + edge <= len(stream)]
    cuts = sorted(set(data.draw(st.lists(st.sampled_from(near) | st.integers(0, len(stream)), max_size=20))))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    def body() -> None:
        link = Link()
        connection, collector, _ = connected(link)
        for piece in filter(None, pieces):
            connection.data_received(piece)
        assert collector.frames == frames
        assert link.received_count == len(frames)

    on_loop(body)


def _starts(frames: Sequence[bytes]) -> list[int]:
    starts = [0]
    for each in frames:
        starts.append(starts[-1] + len(each))
    return starts


async def test_one_byte_at_a_time() -> None:
    connection, collector, _ = connected()
    frames = [frame(n, n) for n in range(5)]
    for byte in b"".join(frames):
        connection.data_received(bytes([byte]))
    assert collector.frames == frames
    assert connection.was_heard


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (HEADER.pack(MAX_FRAME + 1, CALL, 0, 0, 1, 2, 3, 4), FrameTooLarge),
        (HEADER.pack(MAX_FRAME + 1, CALL, 0, 0, 1, 2, 3, 4)[:4], FrameTooLarge),
        (HEADER.pack(39, CALL, 0, 0, 1, 2, 3, 4), BadFrame),
        (bytes(4), BadFrame),
        (pack_frame(99, 0, 1, 2, 3, 4, b"", b""), BadFrame),
    ],
    ids=["long", "long, length only", "short", "empty", "kind"],
)
async def test_a_frame_that_breaks_the_rules_closes_the_connection(data: bytes, error: type[Exception]) -> None:
    connection, collector, wire = connected()
    good = frame(1)
    connection.data_received(good)
    connection.data_received(data)
    assert [type(end) for end in collector.ends] == [error]
    assert connection.is_closed
    assert wire.is_closed
    connection.send(frame(2))
    assert wire.data == b""


async def test_a_limit_of_one_frame_is_inclusive() -> None:
    connection, collector, _ = connected()
    largest = frame(1, MAX_FRAME - 40)
    for start in range(0, len(largest), 100_000):
        connection.data_received(largest[start : start + 100_000])
    assert collector.frames == [largest]


# -- out -------------------------------------------------------------------------------------------------------------


async def test_what_is_sent_before_the_first_socket_waits_for_it() -> None:
    wire = Wire()
    connection = Connection(Collector(), "peer", 7)
    connection.send(frame(1))
    connection.send_run([frame(2), frame(3)])
    connection.attach(wire)
    connection.send(frame(4))
    assert frames_in(wire.data) == [frame(n) for n in (1, 2, 3, 4)]


def test_frames_of_one_turn_are_one_write_on_the_standard_loop() -> None:
    """Each write is a system call there."""

    async def body() -> None:
        connection, _, wire = connected()
        for n in range(10):
            connection.send(frame(n))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [frames_in(written) for written in wire.written] == [[frame(n) for n in range(10)]]

    asyncio.run(body())


@pytest.mark.parametrize("on_standard_loop", [False, True])
def test_close_sends_what_was_handed_over(on_standard_loop: bool) -> None:
    async def body() -> None:
        connection, _, wire = connected()
        connection.send(frame(1))
        connection.close()
        connection.close()
        connection.send(frame(2))
        assert frames_in(wire.data) == [frame(1)]
        assert wire.is_closed

    with asyncio.Runner(loop_factory=asyncio.new_event_loop if on_standard_loop else None) as runner:
        runner.run(body())


class Source:
    """Something large: ``n`` chunks, of which ``allowed`` may go."""

    def __init__(self, name: int, n: int, allowed: int | None = None) -> None:
        self.name, self.n, self.sent = name, n, 0
        self.allowed = n if allowed is None else allowed

    def next_chunk(self) -> list[bytes] | None:
        if self.sent >= min(self.n, self.allowed):
            return None
        self.sent += 1
        return [pack_frame(CHUNK, 0, 1, 2, self.name, self.sent, b"", b"")]

    @property
    def is_done(self) -> bool:
        return self.sent >= self.n


def chunks(wire: Wire) -> list[tuple[int, int]]:
    """Return (source, number) of chunks, (0, call) of other frames."""
    found = []
    for each in frames_in(wire.data):
        _, kind, _, _, _, _, target, call = HEADER.unpack_from(each)
        found.append((target if kind == CHUNK else 0, call))
    return found


async def test_other_frames_overtake_bulk_while_the_socket_is_behind() -> None:
    connection, _, wire = connected()
    connection.pause_writing()
    connection.bulk(Source(1, 3))
    connection.send(frame(9))
    assert chunks(wire) == [(0, 9)]
    connection.resume_writing()
    assert chunks(wire) == [(0, 9), (1, 1), (1, 2), (1, 3)]


def chunk(number: int) -> bytes:
    return pack_frame(CHUNK, 0, 1, 2, 5, number, b"", b"")


@pytest.mark.parametrize("end", ["resumed", "closed", "replaced"])
async def test_chunks_that_are_passed_on_wait_their_turn_and_deaths_behind_them(end: str) -> None:
    """They come from another connection, which cannot be stopped; what the dead had sent comes first."""
    connection, _, wire = connected(Link())
    death = pack_frame(EXITED, 0, 1, 2, 0, 77)
    connection.send_pieces([chunk(1)])
    connection.pause_writing()
    connection.send_pieces([chunk(2)[:40], chunk(2)[40:]])
    connection.send_run([chunk(3), frame(9), death])
    connection.send(frame(10))
    assert chunks(wire) == [(5, 1), (0, 9), (0, 10)]
    if end == "resumed":
        connection.resume_writing()
    elif end == "closed":
        connection.close()
    else:
        connection.drop()
        connection.send_run([chunk(4)])
        first, wire = wire, Wire()
        assert connection.link is not None
        connection.link.down(0.0)
        connection.attach(wire, b"", connection.link.resume(3, 0.0))  # type: ignore[arg-type]
        wire.written[:0] = first.written
    rest = [(5, 2), (5, 3), (0, 77), *([(5, 4)] if end == "replaced" else [])]
    assert chunks(wire)[3:] == rest


async def test_without_a_link_what_is_passed_on_goes_at_once() -> None:
    connection, _, wire = connected()
    connection.pause_writing()
    connection.send_run([chunk(1), frame(2)])
    connection.send_pieces([chunk(3)])
    assert chunks(wire) == [(5, 1), (0, 2), (5, 3)]


async def test_bulk_stops_when_the_socket_says_so() -> None:
    connection, _, wire = connected()
    write = wire.write

    def write_and_be_full(data: bytes | bytearray | memoryview) -> None:
        write(data)
        connection.pause_writing()

    wire.write = write_and_be_full  # type: ignore[method-assign]
    connection._write = wire.write
    connection.send = wire.write  # type: ignore[assignment]
    connection.bulk(Source(1, 3))
    assert chunks(wire) == [(1, 1)]
    assert not connection.has_room
    connection.resume_writing()
    assert chunks(wire) == [(1, 1), (1, 2)]


async def test_bulk_sources_take_turns_and_one_that_waits_stops_no_other() -> None:
    connection, _, wire = connected()
    slow, quick = Source(1, 4, allowed=1), Source(2, 3)
    connection.pause_writing()
    connection.bulk(slow)
    connection.bulk(quick)
    connection.resume_writing()
    assert chunks(wire) == [(1, 1), (2, 1), (2, 2), (2, 3)]
    slow.allowed = 4
    connection.resume_bulk()
    assert chunks(wire)[4:] == [(1, 2), (1, 3), (1, 4)]


# -- links -----------------------------------------------------------------------------------------------------------


def small_link() -> Link:
    return Link(max_unacked_bytes=200, ack_every_frames=4, ack_every_bytes=200)


def ack(count: int) -> bytes:
    return pack_frame(ACK, 0, 0, 0, 0, count)


async def test_past_a_full_link_frames_wait_in_order_for_an_ack() -> None:
    connection, _, wire = connected(small_link())
    frames = [frame(n) for n in range(12)]
    for each in frames:
        connection.send(each)
    assert frames_in(wire.data) == frames[:5]
    assert not connection.has_room
    connection.data_received(ack(2))
    assert frames_in(wire.data) == frames[:7]
    connection.send(frame(99))
    connection.data_received(ack(7))
    assert frames_in(wire.data) == frames[:12]
    connection.data_received(ack(12))
    assert frames_in(wire.data) == [*frames, frame(99)]
    assert connection.has_room


async def test_an_ack_is_sent_when_due_and_pings_carry_one() -> None:
    connection, _, wire = connected(small_link())
    connection.data_received(b"".join(frame(n) for n in range(3)))
    assert wire.data == b""
    connection.ping()
    connection.data_received(frame(3) * 4)
    counts = [HEADER.unpack_from(each)[7] for each in frames_in(wire.data)]
    assert counts == [3, 7]


async def test_a_socket_without_a_link_pings_plainly() -> None:
    connection, _, wire = connected()
    connection.ping()
    assert [HEADER.unpack_from(each)[1] for each in frames_in(wire.data)] == [PING]


async def test_a_new_socket_gets_what_the_old_one_may_have_lost() -> None:
    link = small_link()
    connection, collector, first = connected(link)
    for n in range(7):
        connection.send(frame(n))
    connection.data_received(frame(50) + frame(51)[:20])
    connection.drop()
    assert first.is_closed
    assert collector.ends == [None]
    connection.send(frame(7))
    link.down(1.0)
    second = Wire()
    connection.attach(second, leftover=frame(51) + frame(52), replay=link.resume(3, 2.0))
    assert frames_in(second.data) == [frame(n) for n in (3, 4, 5, 6, 7)]
    assert collector.frames == [frame(50), frame(51), frame(52)]
    assert link.received_count == 3


async def test_an_old_socket_is_not_heard_after_it_was_dropped() -> None:
    connection, collector, wire = connected(small_link())
    connection.drop()
    protocol = wire.protocol
    assert protocol is not connection
    protocol.data_received(frame(1))  # type: ignore[attr-defined]
    protocol.connection_lost(None)
    assert collector.frames == []
    assert collector.ends == [None]


async def test_without_a_link_the_end_of_the_socket_is_the_end() -> None:
    connection, collector, wire = connected()
    connection.connection_lost(None)
    assert connection.is_closed
    connection.send(frame(1))
    connection.bulk(Source(1, 2))
    connection.drop()
    assert wire.data == b""
    assert collector.ends == [None]


@pytest.mark.parametrize("end", ["closed", "broken"])
async def test_what_is_closed_for_good_keeps_nothing_and_hears_nothing(end: str) -> None:
    """References to it live on: by whom a lost host is still known."""
    link = small_link()
    connection, collector, _ = connected(link)
    for n in range(20):
        connection.send(frame(n, 100))
    assert link.unacked_bytes
    if end == "closed":
        connection.close()
        connection.data_received(frame(1) + pack_frame(ACK, 0, 1, 0, 0, 5))  # TLS may still have some
    else:
        connection.data_received(U32.pack(3) + b"bad")
    assert not link._frames and link.unacked_bytes == 0
    assert not connection._held
    connection.send(frame(21))
    connection.send_run([frame(22)])
    connection.bulk(Source(1, 2))
    assert not link._frames and not connection._held and not connection._bulk
    assert collector.frames == []


async def test_a_connection_that_is_closed_by_what_it_brings_goes_no_further() -> None:
    class Closing(Collector):
        def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
            taken = super().feed(connection, data)
            connection.close()
            return taken

    collector = Closing()
    connection = Connection(collector, "peer", 7, small_link(), MAX_FRAME)
    connection.attach(Wire())
    connection.data_received(frame(1) + frame(2)[:20])
    connection.data_received(frame(2)[20:])
    assert collector.frames == [frame(1)]


async def test_a_closed_connection_takes_no_new_socket() -> None:
    connection, _, _ = connected(small_link())
    connection.close()
    late = Wire()
    connection.attach(late)
    assert late.is_closed
    assert late.data == b""


async def test_frames_of_one_turn_are_two_writes_and_large_ones_are_not_copied() -> None:
    """On uvloop each write is a system call, and wakes the peer."""
    connection, _, wire = connected()
    small, large = [frame(number) for number in range(5)], pack_frame(CALL, 0, 1, 2, 3, 4, b"", bytes(64 << 10))
    for each in [*small, large, *small]:
        connection.send(each)
    assert wire._written == [small[0], b"".join(small[1:]), large]
    await asyncio.sleep(0)
    assert wire._written[3:] == [b"".join(small)]
    connection.send(small[0])
    assert wire._written[-1] == small[0]
    connection.close()
