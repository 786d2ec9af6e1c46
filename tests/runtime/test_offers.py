"""What becomes of memory that was offered to receivers of large payloads, whatever these say, and in which order."""

import asyncio
import gc
import os

import pytest

from monarch_async.bulk.arena import open_segment
from monarch_async.bulk.blocks import BlockPool
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.errors import TransferBroken, TransferError
from monarch_async.ids import address
from monarch_async.runtime.outgoing import REGION, Outgoing, Parcel
from monarch_async.runtime.router import Router
from monarch_async.runtime.taker import Taker
from monarch_async.wire.frame import CALL, HEADER, HEADER_SIZE
from monarch_async.wire.message import CallFields, parse_call_fields
from monarch_async.wire.payload import Encoded

MB = 1 << 20
HERE = 1


class Way:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.chunks: list[memoryview] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def bulk(self, source) -> None:
        while (chunk := source.next_chunk()) is not None:
            self.chunks.append(chunk[1])

    def resume_bulk(self) -> None: ...

    def offer(self) -> list:
        head = HEADER.unpack_from(self.frames[-1])
        memory = parse_call_fields(self.frames[-1][HEADER_SIZE : HEADER_SIZE + head[3]]).memory
        assert memory is not None
        return memory


class Sender:
    """An `Outgoing` whose receivers are on host `HERE`, which is this machine; its transfers are 1, 2..."""

    def __init__(self, transports: str = "local,cma,memfd,tcp") -> None:
        config = Config(transports=transports)
        self.plane, self.way = DataPlane(config), Way()
        self.outgoing = Outgoing(address(HERE, 9), config, BlockPool(), self.plane, iter(range(1, 99)))
        self.outgoing.is_near = lambda host: host == HERE

    def parcel(self, size: int = 2 * MB) -> Parcel:
        return self.outgoing.parcel(Encoded(b"skeleton", [memoryview(bytes(size))]), near=2)

    def send(self, parcel: Parcel, proc: int = 1) -> None:
        way = self.way
        self.outgoing.pack(CALL, 0, address(HERE, proc), 5, 77, CallFields("f"), parcel, way)()  # type: ignore[arg-type]


async def test_a_segment_that_is_let_go_of_before_it_was_acknowledged_is_used_again() -> None:
    """The two go different ways where the call came directly."""
    sender = Sender()
    sender.send(sender.parcel())
    sender.outgoing.released(1)
    sender.outgoing.received(1, 2 * MB + 8)
    gc.collect()
    assert sender.plane.arena.idle_bytes >= 2 * MB
    assert not sender.outgoing._lent


@pytest.mark.slow
async def test_what_was_read_and_not_mapped_is_not_waited_for() -> None:
    sender = Sender()
    sender.send(sender.parcel())
    sender.outgoing.refused(1)  # this host opens no segments
    sender.outgoing.received(1, 2 * MB + 8)
    sender.send(sender.parcel(), proc=2)
    assert sender.way.offer()[0] == REGION
    sender.outgoing.received(2, 2 * MB + 8)
    gc.collect()
    assert not sender.outgoing._lent
    assert len(sender.plane.regions) == 0


@pytest.mark.slow
async def test_a_segment_whose_chunks_are_on_their_way_is_not_used_again() -> None:
    """What was handed to a socket is not copied: it must stay what it is."""
    sender = Sender()
    sender.send(sender.parcel())
    sender.outgoing.refused(1)
    sender.outgoing.received(1, MB)  # the last chunk has been handed out, and is not acknowledged
    gc.collect()
    assert not sender.outgoing._sending
    again = sender.plane.arena.take(2 * MB + 8)
    again.view[:] = b"\xff" * len(again.view)
    assert b"".join(sender.way.chunks) == b"skeleton" + bytes(2 * MB)


@pytest.mark.parametrize("has_acknowledged", [True, False])
async def test_a_sender_that_ends_leaves_receivers_what_they_have_mapped(has_acknowledged: bool) -> None:
    """Taking the pages away would kill them as soon as they look."""
    sender = Sender()
    sender.send(sender.parcel())
    token = sender.way.offer()[1]
    data = open_segment(tuple(token))
    fd = os.open(f"/proc/self/fd/{token[1]}", os.O_RDONLY)
    try:
        if has_acknowledged:
            sender.outgoing.received(1, 2 * MB + 8)
        sender.outgoing.close()
        gc.collect()
        await sender.plane.aclose()
        assert os.fstat(fd).st_size >= 2 * MB
        assert data[:8] == b"skeleton"
    finally:
        os.close(fd)


async def test_ids_of_calls_transfers_and_uploads_are_not_those_of_an_earlier_life_at_the_address() -> None:
    lives = [Router(address(HERE, 9), Config(), "a proc") for _ in range(2)]
    found = [{life.take_id() for _ in range(1000)} for life in lives]
    assert not found[0] & found[1]


async def test_without_descriptors_a_payload_is_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender()

    def take(size: int) -> None:
        raise TransferError(f"shared memory of {size} bytes", "too many open files")

    monkeypatch.setattr(sender.plane.arena, "take", take)
    parcel = sender.parcel()
    assert parcel.segment is None
    assert parcel.size == 2 * MB + 8


async def test_a_sender_that_is_gone_when_its_memory_is_read_is_asked_for_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not raised in whoever reads from its connection, which would break."""
    sender, plane = Sender(), DataPlane(Config())
    sender.send(sender.outgoing.parcel(Encoded(b"skeleton", [memoryview(bytes(MB))])))

    def read_now(*_: object) -> bool:
        raise TransferBroken("a peer", "its process is gone")

    monkeypatch.setattr(plane, "read_now", read_now)
    taken: list[object] = []
    Taker(plane, BlockPool()).take(sender.way.offer(), [8, MB], lambda: None, taken.append)
    await asyncio.sleep(0)
    assert taken == [None]
