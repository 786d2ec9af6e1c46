"""Large payloads in chunks: memory, windows, places; and the order of what is sent around them."""

import asyncio
import ctypes
import gc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.bulk.blocks import BlockPool
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.errors import BadFrame
from monarch_async.runtime.delivery import SPAWN, Delivery
from monarch_async.runtime.outgoing import Outgoing
from monarch_async.runtime.taker import Taker
from monarch_async.runtime.transfer import ACK_EVERY, WINDOW, Inbound, Outbound
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import BUFFERS, CALL, CHUNK, CHUNKED, HEADER, HEADER_SIZE
from monarch_async.wire.message import CallFields, parse_call_fields
from monarch_async.wire.payload import Encoded

MB = 1 << 20


# -- memory ----------------------------------------------------------------------------------------------------------


def location(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_a_block_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    pool = BlockPool()
    block = pool.take(3 * MB)
    where = location(block)
    part = block[MB:]
    del block
    gc.collect()
    assert pool.idle_bytes == 0  # `part` still needs it
    del part
    gc.collect()
    assert pool.idle_bytes >= 3 * MB
    again = pool.take(3 * MB - 100)  # about the same size will do
    assert location(again) == where
    assert len(again) == 3 * MB - 100
    assert pool.idle_bytes == 0


def test_two_payloads_never_share_a_block() -> None:
    pool = BlockPool()
    first, second = pool.take(2 * MB), pool.take(2 * MB)
    first[:] = bytes(2 * MB)
    second[:] = b"x" * (2 * MB)
    assert bytes(first[:10]) == bytes(10)


def test_what_is_kept_idle_is_bounded() -> None:
    pool = BlockPool(limit=4 * MB)
    blocks = [pool.take(2 * MB) for _ in range(5)]
    del blocks
    gc.collect()
    assert 2 * MB <= pool.idle_bytes <= 4 * MB


@given(st.integers(1, 1 << 22))
@settings(max_examples=40, deadline=None)
def test_any_size_is_exact(size: int) -> None:
    block = BlockPool().take(size)
    assert (len(block), block.readonly) == (size, False)


# -- out and in ------------------------------------------------------------------------------------------------------


def parts_of(sizes: Sequence[int]) -> list[memoryview]:
    return [memoryview(bytes([index % 251]) * size) for index, size in enumerate(sizes, 1)]


SIZES = st.lists(st.integers(0, 5000), min_size=1, max_size=6).map(lambda sizes: [max(sizes[0], 1), *sizes[1:]])


@given(SIZES, st.integers(1, 3000), st.integers(1, 64))
@settings(deadline=None)
def test_what_goes_out_in_chunks_comes_in_whole(sizes: list[int], chunk: int, pieces: int) -> None:
    parts = parts_of(sizes)
    done: list[list[bytes]] = []
    out = Outbound(5, 1, 2, parts, chunk)
    into = Inbound(2, sizes, BlockPool(), lambda first, rest: done.append([bytes(b) for b in (first, *rest)]))
    while (frame := out.next_chunk()) is not None:
        head, body = frame
        length, kind, _, _, dst, src, transfer, offset = HEADER.unpack(head)
        assert (length, kind, dst, src, transfer) == (HEADER_SIZE + len(body), CHUNK, 1, 2, 5)
        assert 0 < len(body) <= chunk
        step = max(1, len(body) // pieces)
        into.take(offset, [body[at : at + step] for at in range(0, len(body), step)])
    assert out.is_done
    assert into.received == into.size == sum(sizes)
    into.finish()
    assert done == [[bytes(part) for part in parts]]


def test_a_sender_is_never_further_ahead_than_the_window() -> None:
    out = Outbound(5, 1, 2, parts_of([3 * WINDOW]), MB)
    sent = 0
    for received in (0, MB, WINDOW, 2 * WINDOW, 3 * WINDOW):
        out.allow(received)
        while (frame := out.next_chunk()) is not None:
            sent += len(frame[1])
        assert sent == min(received + WINDOW, 3 * WINDOW)
    assert out.is_done
    assert out.next_chunk() is None


def test_an_older_acknowledgement_takes_nothing_back() -> None:
    out = Outbound(5, 1, 2, parts_of([3 * WINDOW]), MB)
    out.allow(WINDOW)
    out.allow(0)
    sent = 0
    while (frame := out.next_chunk()) is not None:
        sent += len(frame[1])
    assert sent == 2 * WINDOW


def test_a_receiver_acknowledges_often_enough_for_the_window() -> None:
    assert ACK_EVERY + MB < WINDOW
    into = Inbound(2, [WINDOW], BlockPool(), lambda *_: None)
    due = [into.take(at, [bytes(MB)]) for at in range(0, WINDOW, MB)]
    assert due == [False, True] * (WINDOW // (2 * MB))


@pytest.mark.parametrize(
    ("offset", "size", "why"),
    [(0, 11, "runs over"), (5, 1, "expected 0"), (0, 7, "runs over the end of its buffer"), (1 << 60, 1, "expected 0")],
)
def test_a_chunk_out_of_place_is_refused(offset: int, size: int, why: str) -> None:
    into = Inbound(2, [6, 4], BlockPool(), lambda *_: None)
    with pytest.raises(BadFrame, match=why):
        into.take(offset, [bytes(size)])


def test_a_chunk_that_comes_twice_is_refused() -> None:
    into = Inbound(2, [6, 4], BlockPool(), lambda *_: None)
    into.take(0, [bytes(3)])
    with pytest.raises(BadFrame, match="chunk at 0, expected 3"):
        into.take(0, [bytes(3)])


# -- order -----------------------------------------------------------------------------------------------------------


class Target:
    """Takes calls and writes down which."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []

    def accept(self, src, call, flags, fields, skeleton, buffers) -> None:
        self.taken.append((call, bytes(skeleton)))

    def cancel(self, src: int, call: int) -> None: ...

    def credit(self, src: int, call: int, items: int, nbytes: int) -> None: ...


class Receiver:
    """A `Delivery` with two targets, told of calls as a router does."""

    def __init__(self) -> None:
        self.acks: list[tuple[int, int, int | None]] = []
        pool = BlockPool()
        taker = Taker(DataPlane(Config()), pool)
        self.delivery = Delivery(pool, taker, lambda *ack: self.acks.append(ack[:3]), lambda *_: None)
        self.missing: list[int] = []
        self.delivery.on_missing = lambda src, call, *_: self.missing.append(call)
        self.one, self.two = Target(), Target()
        self.delivery.targets.update({1: self.one, 2: self.two})

    def small(self, call: int, target: int = 1, src: int = 7, payload: bytes = b"small", flags: int = 0) -> None:
        fields = CallFields("f", [len(payload)]) if flags & BUFFERS else CallFields("f")
        self.delivery.take_call(src, flags, target, call, fields, payload)

    def large(self, call: int, target: int = 1, src: int = 7, size: int = 4, endpoint: str = "f") -> None:
        self.delivery.take_call(src, CHUNKED, target, call, CallFields(endpoint, [size], 100 + call), b"")

    def creates(self, target: int) -> Target:
        """Have the next call to a target that is missing make it."""
        created = Target()
        self.delivery.on_missing = lambda *_: self.delivery.targets.update({target: created})
        return created

    def chunk(self, call: int, data: bytes, offset: int = 0, src: int = 7) -> None:
        self.delivery.take_chunk(src, 100 + call, offset, [data])


async def test_what_is_sent_after_a_large_call_to_the_same_actor_comes_after_it() -> None:
    receiver = Receiver()
    receiver.small(1)
    receiver.large(2)
    receiver.small(3)
    receiver.small(4, flags=BUFFERS)
    receiver.large(5)
    receiver.small(6)
    assert receiver.one.taken == [(1, b"small")]
    receiver.chunk(5, b"five")
    receiver.chunk(2, b"tw")
    assert len(receiver.one.taken) == 1
    receiver.chunk(2, b"o.", offset=2)
    expected = [(1, b"small"), (2, b"two."), (3, b"small"), (4, b"small"), (5, b"five"), (6, b"small")]
    assert receiver.one.taken == expected
    receiver.small(7)
    assert receiver.one.taken[-1] == (7, b"small")
    assert receiver.delivery.held == {}


async def test_what_goes_to_another_actor_or_comes_from_another_sender_overtakes_it() -> None:
    receiver = Receiver()
    receiver.large(1)
    receiver.small(2, target=2)
    receiver.small(3, src=8)
    assert receiver.two.taken == [(2, b"small")]
    assert receiver.one.taken == [(3, b"small")]


async def test_a_call_to_what_is_being_created_waits_for_it_whoever_sent_it() -> None:
    receiver = Receiver()
    receiver.large(1, target=3, endpoint=SPAWN)
    receiver.small(2, target=3)
    receiver.small(3, target=3, src=8)
    receiver.large(4, target=3, src=9)
    receiver.chunk(4, b"four", src=9)
    assert receiver.missing == []
    created = receiver.creates(3)
    receiver.chunk(1, b"make")
    assert sorted(call for call, _ in created.taken) == [2, 3, 4]
    assert receiver.delivery.held == {}


async def test_what_has_waited_for_a_target_comes_before_what_its_sender_sent_later() -> None:
    receiver = Receiver()
    receiver.large(1, target=3, endpoint=SPAWN)
    receiver.large(2, target=3)  # is still on its way when the target is there
    receiver.small(3, target=3, src=8)
    receiver.large(4, target=3, src=9)
    receiver.small(5, target=3, src=8)
    created = receiver.creates(3)
    receiver.chunk(1, b"make")
    receiver.small(6, target=3, src=8)
    assert [call for call, _ in created.taken] == [3, 5, 6]
    receiver.chunk(4, b"four", src=9)
    receiver.chunk(2, b"two.")
    assert [call for call, _ in created.taken] == [3, 5, 6, 4, 2]


async def test_calls_to_what_is_not_created_after_all_are_told_so() -> None:
    receiver = Receiver()
    receiver.large(1, target=3, endpoint=SPAWN)
    receiver.small(2, target=3)
    receiver.small(3, target=3, src=8)
    receiver.delivery.lose(lambda src: src == 7)
    assert sorted(receiver.missing) == [2, 3]
    receiver.missing.clear()
    receiver.large(4, target=3, src=9, endpoint=SPAWN)
    receiver.small(5, target=3, src=8)
    receiver.chunk(4, b"fail", src=9)
    assert receiver.missing == [4, 5]
    assert receiver.delivery.held == {}


async def test_a_call_that_waits_for_its_target_can_be_cancelled() -> None:
    receiver = Receiver()
    receiver.large(1, target=3, endpoint=SPAWN)
    receiver.small(2, target=3, src=8)
    cancelled: list[bool] = []
    created = receiver.creates(3)
    assert receiver.delivery.after_held(8, 3, lambda: cancelled.append(bool(created.taken)))
    receiver.chunk(1, b"make")
    assert cancelled == [True]
    assert not receiver.delivery.after_held(8, 3, lambda: None)


async def test_a_sender_of_chunks_is_answered_at_once() -> None:
    """The agent tells of its death whoever has sent to it."""
    receiver = Receiver()
    receiver.large(1)
    assert receiver.acks == [(7, 101, 0)]


async def test_a_sender_that_dies_half_way_holds_up_nobody() -> None:
    receiver = Receiver()
    receiver.large(1)
    receiver.small(2)
    receiver.large(3, src=8)
    receiver.chunk(1, b"on")
    receiver.delivery.lose(lambda src: src == 7)
    assert receiver.one.taken == [(2, b"small")]
    receiver.chunk(1, b"e.", offset=2)  # late, and of no interest
    receiver.chunk(3, b"good", src=8)
    assert receiver.one.taken == [(2, b"small"), (3, b"good")]
    assert receiver.delivery.held == {}


async def test_a_chunked_call_must_say_how_large_it_is() -> None:
    with pytest.raises(BadFrame, match="without sizes"):
        Receiver().delivery.take_call(7, CHUNKED, 1, 1, CallFields("f"), b"")


ORDER = st.lists(st.tuples(st.sampled_from([7, 8]), st.sampled_from([1, 2]), st.booleans()), min_size=1, max_size=14)


@given(ORDER, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_d1_each_sender_is_heard_in_its_order_by_each_target(calls: list[tuple[int, int, bool]], chance) -> None:
    async def body() -> None:
        receiver = Receiver()
        waiting: list[tuple[int, int]] = []
        for n, (src, target, is_large) in enumerate(calls, 1):
            if is_large:
                receiver.large(n, target, src)
                waiting.append((n, src))
            else:
                receiver.small(n, target, src)
            if waiting and chance.random() < 0.4:
                n, src = waiting.pop(chance.randrange(len(waiting)))
                receiver.chunk(n, b"late", src=src)
        while waiting:
            n, src = waiting.pop(chance.randrange(len(waiting)))
            receiver.chunk(n, b"late", src=src)
        for src in (7, 8):
            for target, found in ((1, receiver.one), (2, receiver.two)):
                sent = [n for n, (s, t, _) in enumerate(calls, 1) if (s, t) == (src, target)]
                assert [n for n, _ in found.taken if n in sent] == sent
        assert receiver.delivery.held == {}

    asyncio.run(body())


# -- from the sender's side ------------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """Writes down what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data) -> None:
        self.data += bytes(data)

    def get_protocol(self):
        return None

    def set_protocol(self, protocol) -> None: ...

    def set_write_buffer_limits(self, high=None, low=None) -> None: ...

    def is_reading(self) -> bool:
        return True


def heads(data: bytes) -> list[tuple[int, ...]]:
    found, offset = [], 0
    while offset < len(data):
        found.append(HEADER.unpack_from(data, offset))
        offset += found[-1][0]
    return found


async def test_a_large_message_takes_its_place_at_once_and_its_chunks_let_others_by() -> None:
    wire = Wire()
    connection = Connection(None, "peer", 1)  # type: ignore[arg-type]
    connection.attach(wire)
    config = Config(chunk=1000, large=2000, transports="")
    outgoing = Outgoing(2, config, BlockPool(), DataPlane(config), iter(range(50, 60)))
    data = bytearray(b"a" * 5000)
    parcel = outgoing.parcel(Encoded(b"skeleton", [memoryview(data)]))
    data[:] = b"b" * 5000  # its owner may go on
    connection.pause_writing()
    outgoing.pack(CALL, 0, 1, 9, 77, CallFields("f"), parcel, connection)()
    connection.send(b"".join([HEADER.pack(HEADER_SIZE, CALL, 0, 0, 1, 2, 9, 78)]))
    await asyncio.sleep(0)  # the end of the turn
    assert [(head[1], head[7]) for head in heads(wire.data)] == [(CALL, 77), (CALL, 78)]
    head = heads(wire.data)[0]
    assert head[2] & CHUNKED
    assert parse_call_fields(wire.data[HEADER_SIZE : HEADER_SIZE + head[3]]) == CallFields("f", [8, 5000], 50)
    connection.resume_writing()
    assert [head[1] for head in heads(wire.data)[2:]] == [CHUNK] * 6
    assert [head[7] for head in heads(wire.data)[2:]] == [0, 8, 1008, 2008, 3008, 4008]
    assert b"b" not in wire.data
    assert wire.data.count(b"a") == 5000


async def test_a_receiver_that_is_gone_is_sent_nothing_more() -> None:
    wire = Wire()
    connection = Connection(None, "peer", 1)  # type: ignore[arg-type]
    connection.attach(wire)
    config = Config(chunk=MB, large=2000, transports="")
    outgoing = Outgoing(2, config, BlockPool(), DataPlane(config), iter(range(50, 60)))
    parcel = outgoing.parcel(Encoded(b"skeleton", [memoryview(bytes(2 * WINDOW))]))
    outgoing.pack(CALL, 0, 1, 9, 77, CallFields("f"), parcel, connection)()
    sent = len(wire.data)
    assert sent < WINDOW + 2 * MB
    outgoing.lose(lambda dst: dst == 1)
    outgoing.received(50, WINDOW)
    connection.resume_bulk()
    assert len(wire.data) == sent
