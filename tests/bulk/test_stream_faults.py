"""Bulk streams when something goes wrong: garbled, cut, revoked, cancelled, killed, slow, nonsense."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from stream_peers import KEY, SMALL, Moved, Owner, ignore, owning, program, random_bytes

from monarch_async.bulk.receiving import TRIES
from monarch_async.bulk.region import RemoteRegion
from monarch_async.bulk.request import TransferRequest
from monarch_async.bulk.stream import StreamTransport
from monarch_async.errors import StaleHandle, TransferBroken
from monarch_async.testing.proxy import FaultProxy
from monarch_async.transport.dial import dial
from monarch_async.transport.url import Url
from monarch_async.wire.chunk import CHUNK, HEADER_SIZE, READ, TAKEN, pack_header, parse_header

SIZE = 1 << 20
CHUNKS = SIZE // SMALL.bulk_chunk
DATA = random_bytes(SIZE)


@contextlib.asynccontextmanager
async def through_a_proxy() -> AsyncIterator[tuple[Owner, FaultProxy, StreamTransport]]:
    async with owning() as owner, owner.proxy() as proxy:
        transport = owner.transport(proxy=proxy)
        try:
            yield owner, proxy, transport
        finally:
            await transport.aclose()


async def read_all(transport: StreamTransport, handle: RemoteRegion, progress: Callable[[int], None] = ignore) -> bytes:
    into = bytearray(handle.size)
    await transport.read(handle, [(0, handle.size)], [memoryview(into)], progress)
    return bytes(into)


async def write_all(transport: StreamTransport, handle: RemoteRegion, data: bytes = DATA) -> None:
    await transport.write(handle, [(0, len(data))], [memoryview(data)], ignore)


# -- garbled and cut -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [1, 2, CHUNKS])
async def test_a_chunk_that_is_garbled_is_asked_for_again(frame: int) -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        memory = bytearray(DATA)
        handle = owner.handle(owner.add(memory))
        garbled = proxy.corrupt("to_dialer", at_frame=frame, offset=HEADER_SIZE + 1000)
        assert await read_all(transport, handle) == DATA
        assert garbled.is_set() and proxy.frames["to_dialer"] == CHUNKS + 1
        memory[:] = bytes(SIZE)
        at = proxy.frames["to_listener"] + 1  # its request
        garbled = proxy.corrupt("to_listener", at_frame=at + frame, offset=-1)
        await write_all(transport, handle)
        assert garbled.is_set() and memory == DATA
        assert proxy.connections == 1


async def test_a_range_that_is_always_garbled() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        handle = owner.handle(region := owner.add(bytearray(DATA[:1000])))
        for frame in range(1, TRIES + 1):
            proxy.corrupt("to_dialer", at_frame=frame, offset=-1)
        with pytest.raises(TransferBroken, match=f"bytes 0 to 1000 arrived garbled {TRIES} times"):
            await read_all(transport, handle)
        assert await read_all(transport, handle) == DATA[:1000]
        assert region.users == 0


async def test_a_range_of_a_write_that_is_always_garbled() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        handle = owner.handle(region := owner.add(bytearray(1000)))
        for frame in range(2, TRIES + 2):
            proxy.corrupt("to_listener", at_frame=frame, offset=-1)
        with pytest.raises(TransferBroken, match=f"bytes 0 to 1000 arrived garbled {TRIES} times"):
            await write_all(transport, handle, DATA[:1000])
        await write_all(transport, handle, DATA[:1000])
        assert region.users == 0


@pytest.mark.parametrize("offset", [0, 9, 30])
async def test_a_header_that_is_garbled_costs_the_connection(offset: int, caplog: pytest.LogCaptureFixture) -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        handle = owner.handle(region := owner.add(bytearray(DATA)))
        garbled = proxy.corrupt("to_dialer", at_frame=5, offset=offset)
        assert await read_all(transport, handle) == DATA
        assert garbled.is_set() and proxy.connections == 2
        assert "bulk connection with trainers[0] on host-07 ends: bad frame" in caplog.text
        while region.users:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("frame", "after"), [(1, 0), (3, 30), (6, HEADER_SIZE), (9, HEADER_SIZE + 12345)])
async def test_a_connection_that_is_cut_goes_on_where_it_was(frame: int, after: int) -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        memory = bytearray(DATA)
        handle = owner.handle(region := owner.add(memory))
        moved: list[int] = []
        cut = proxy.cut("to_dialer", at_frame=frame, after_bytes=after)
        assert await read_all(transport, handle, moved.append) == DATA
        assert cut.is_set() and proxy.connections == 2
        assert sum(moved) == SIZE
        assert proxy.frames["to_dialer"] == CHUNKS  # nothing that was there was sent again
        memory[:] = bytes(SIZE)
        cut = proxy.cut("to_listener", at_frame=proxy.frames["to_listener"] + 1 + frame, after_bytes=after)
        await write_all(transport, handle)
        assert cut.is_set() and memory == DATA
        while region.users:
            await asyncio.sleep(0)


async def test_a_write_goes_on_from_what_was_taken() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        handle = owner.handle(owner.add(memory := bytearray(SIZE)))
        proxy.cut("to_listener", at_frame=2 + 12, after_bytes=10)
        await write_all(transport, handle)
        assert memory == DATA
        chunks = proxy.frames["to_listener"] - 2  # two requests
        assert chunks < CHUNKS + 6  # of 11 that came, all but a window and a step of it were known to be there


async def test_cut_again_and_again() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        handle = owner.handle(owner.add(bytearray(DATA)))
        for frame in range(2, CHUNKS):
            proxy.cut("to_dialer", at_frame=frame, after_bytes=100)
        assert await read_all(transport, handle) == DATA
        assert proxy.connections == CHUNKS - 1


async def test_memory_that_its_owner_keeps_changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is not what was summed up; from a copy it is."""
    from monarch_async.bulk import served

    real = served.chunk_frame

    def racing(id: int, pieces: object, start: int, stop: int, is_copied: bool) -> object:
        frame = real(id, pieces, start, stop, is_copied)  # type: ignore[arg-type]
        memory[start] ^= 255
        return frame

    monkeypatch.setattr(served, "chunk_frame", racing)
    async with owning(replace(SMALL, bulk_chunk=256 << 10)) as owner:  # small ones are copied anyway
        memory = bytearray(SIZE)
        transport = owner.transport()
        into = await read_all(transport, owner.handle(owner.add(memory)))
        assert set(into) <= {0, 255}
        await transport.aclose()


async def test_a_peer_that_takes_connections_and_drops_them() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        proxy.refuse_new()
        transport = owner.transport(replace(SMALL, bulk_retries=0.3), proxy)
        begun = time.monotonic()
        with pytest.raises(TransferBroken, match=r"trainers\[0\] on host-07: its process cannot be reached"):
            await read_all(transport, owner.handle(owner.add(bytearray(DATA))))
        assert 0.25 < time.monotonic() - begun < 2
        proxy.accept_new()
        assert await read_all(transport, owner.handle(owner.add(bytearray(DATA)))) == DATA
        await transport.aclose()


async def test_another_process_listens_there() -> None:
    async with owning() as owner:
        endpoint = replace(owner.endpoint, key=b"another key")
        transport = StreamTransport(endpoint, SMALL)
        handle = replace(owner.handle(owner.add(bytearray(10))), endpoint=endpoint)
        with pytest.raises(TransferBroken, match="wrong token"):
            await read_all(transport, handle)
        await transport.aclose()
        assert len(owner.refused) == 1


# -- revoked, cancelled ----------------------------------------------------------------------------------------------


async def test_revoked_in_mid_transfer() -> None:
    async with owning() as owner:
        gate, transport, moved = owner.gate(SIZE // 2), owner.transport(), Moved()
        region, into = owner.add(memory := bytearray(DATA)), bytearray(SIZE)
        reading = asyncio.create_task(transport.read(owner.handle(region), [(0, SIZE)], [memoryview(into)], moved))
        await moved.wait(SIZE // 2)
        owner.regions.remove(region)
        memory[:] = b"n" * SIZE
        gate.open()
        with pytest.raises(StaleHandle, match="the weights"):
            await reading
        assert into == DATA[: SIZE // 2] + bytes(SIZE // 2)
        await region.wait_unused()
        await transport.aclose()


async def test_revoked_while_its_chunks_are_being_sent() -> None:
    """Whatever the moment: the old bytes, or an error."""
    async with owning() as owner:
        transport = owner.transport()
        outcomes = set()
        for delay in range(12):
            region = owner.add(memory := bytearray(DATA))
            reading = asyncio.create_task(read_all(transport, owner.handle(region)))
            for _ in range(delay):
                await asyncio.sleep(0)
            owner.regions.remove(region)
            await region.wait_unused()
            memory[:] = bytes(SIZE)
            try:
                assert await reading == DATA
                outcomes.add("read")
            except StaleHandle:
                outcomes.add("stale")
        assert "stale" in outcomes
        await transport.aclose()


async def test_a_write_that_is_revoked() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        region = owner.add(memory := bytearray(SIZE))
        proxy.freeze_at("to_listener", at_frame=4)
        writing = asyncio.create_task(write_all(transport, owner.handle(region)))
        await proxy.wait_frames("to_listener", 3)
        while memory[: 2 * SMALL.bulk_chunk] != DATA[: 2 * SMALL.bulk_chunk]:
            await asyncio.sleep(0.001)
        owner.regions.remove(region)
        await region.wait_unused()
        memory[:] = bytes(SIZE)
        proxy.thaw()
        with pytest.raises(StaleHandle):
            await writing
        assert memory == bytes(SIZE)


async def test_a_read_that_is_cancelled_touches_nothing_more() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        region = owner.add(bytearray(DATA))
        proxy.freeze_at("to_dialer", at_frame=3)
        into = bytearray(SIZE)
        reading = asyncio.create_task(
            transport.read(owner.handle(region), [(0, SIZE)], [memoryview(into)], ignore)
        )
        await proxy.wait_frames("to_dialer", 2)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        into[:] = bytes(SIZE)
        proxy.thaw()
        assert await read_all(transport, owner.handle(region)) == DATA  # behind the late chunks
        assert into == bytes(SIZE)
        await region.wait_unused()
        assert proxy.connections == 1


async def test_a_write_that_is_cancelled_is_over_there_as_well() -> None:
    async with through_a_proxy() as (owner, proxy, transport):
        region = owner.add(memory := bytearray(SIZE))
        proxy.freeze_at("to_listener", at_frame=4)
        writing = asyncio.create_task(write_all(transport, owner.handle(region)))
        await proxy.wait_frames("to_listener", 3)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        proxy.thaw()
        await asyncio.wait_for(region.wait_unused(), 5)
        memory[:] = bytes(SIZE)
        assert await read_all(transport, owner.handle(region)) == bytes(SIZE)
        assert memory == bytes(SIZE)


async def test_a_hundred_cancelled_reads_leave_nothing() -> None:
    async with owning() as owner:
        transport = owner.transport()
        region = owner.add(bytearray(DATA))
        for turns in range(100):
            reading = asyncio.create_task(read_all(transport, owner.handle(region)))
            for _ in range(turns % 10):
                await asyncio.sleep(0)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
        assert not transport._link._exchanges
        await region.wait_unused()
        assert await read_all(transport, owner.handle(region)) == DATA
        await transport.aclose()


# -- killed ----------------------------------------------------------------------------------------------------------


async def test_the_owner_is_killed_in_mid_transfer() -> None:
    async with program("own") as process:
        assert process.stdout is not None
        region = RemoteRegion.unpack(bytes.fromhex((await process.stdout.readline()).decode()))
        transport = StreamTransport(region.endpoint, replace(SMALL, bulk_retries=30.0))
        moved = Moved()
        reading = asyncio.create_task(read_all(transport, region, moved))
        await moved.wait(SIZE // 2)
        begun = time.monotonic()
        process.send_signal(signal.SIGKILL)
        with pytest.raises(TransferBroken, match="its process cannot be reached"):
            await reading
        assert time.monotonic() - begun < 2  # 30 s would be its patience
        await transport.aclose()


async def test_the_reader_is_killed_in_mid_transfer() -> None:
    async with owning() as owner:
        owner.gate(SIZE // 2)
        region = owner.add(bytearray(DATA))
        async with program("read", owner.handle(region).pack().hex()) as process:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"half\n"
            assert region.users == 1
            process.kill()
            await region.wait_unused()
        assert not owner.server._connections


# -- slow, and nonsense ----------------------------------------------------------------------------------------------


class Raw(asyncio.Protocol):
    """An end that does what a test wants."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.more = asyncio.Event()
        self.is_lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()

    async def wait_bytes(self, count: int) -> None:
        while len(self.data) < count:
            self.more.clear()
            await self.more.wait()


@contextlib.asynccontextmanager
async def raw(owner: Owner) -> AsyncIterator[tuple[Raw, asyncio.Transport]]:
    wire, _ = await dial(Url.parse(f"tcp://{owner.endpoint.tcp}"), KEY, b"raw")
    wire.set_protocol(end := Raw())
    wire.resume_reading()
    try:
        yield end, wire
    finally:
        wire.abort()
        await asyncio.sleep(0)


def request_of(owner: Owner, region: RemoteRegion) -> bytes:
    runs = [(0, region.size)]
    body = TransferRequest(region.id, region.stamp, runs, None, SMALL.bulk_chunk, SMALL.bulk_window).pack()
    return pack_header(READ, 1, length=len(body), total=region.size) + body


async def test_credit_bounds_what_is_under_way() -> None:
    async with owning() as owner, raw(owner) as (end, wire):
        wire.write(request_of(owner, owner.handle(owner.add(bytearray(DATA)))))
        frame, window = HEADER_SIZE + SMALL.bulk_chunk, SMALL.bulk_window // SMALL.bulk_chunk
        await end.wait_bytes(window * frame)
        await asyncio.sleep(0.02)  # nothing more comes
        assert len(end.data) == window * frame
        assert parse_header(end.data, 0).kind == CHUNK
        wire.write(pack_header(TAKEN, 1, start=0, total=SMALL.bulk_chunk))
        await end.wait_bytes((window + 1) * frame)


@pytest.mark.slow
async def test_a_reader_that_does_not_read() -> None:
    """The server keeps one chunk of it, and lets go of the memory of one that is revoked."""
    size = 64 << 20
    config = replace(SMALL, bulk_chunk=4 << 20, bulk_window=1 << 30)
    async with owning(config) as owner, raw(owner) as (_, wire):
        region = owner.add(bytearray(size))
        handle = owner.handle(region)
        wire.pause_reading()
        body = TransferRequest(handle.id, handle.stamp, [(0, size)], None, 4 << 20, 1 << 30).pack()
        wire.write(pack_header(READ, 1, length=len(body), total=size) + body)
        while not region.users:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        (connection,) = owner.server._connections
        assert connection.connection._wire is not None
        assert connection.connection._wire.get_write_buffer_size() <= (4 << 20) + HEADER_SIZE
        other = owner.transport()
        small = owner.handle(owner.add(bytearray(b"y" * 100)))
        assert await read_all(other, small) == b"y" * 100  # others are served
        await other.aclose()
        owner.regions.remove(region)
        await asyncio.wait_for(region.wait_unused(), 5)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"GET / HTTP/1.1\r\n" * 5, "not a frame of the data plane"),
        (pack_header(READ, 1, length=1 << 40), "over the limit"),
        (pack_header(CHUNK, 1, 0, 1 << 40, 1 << 40), "over the limit"),
        (pack_header(READ, 1, length=3) + b"abc", "request for a transfer"),
        (pack_header(1, 1, length=3) + b"abc", "bad frame"),
        (pack_header(5, 1), "kind 5 from a peer that dialled"),
    ],
    ids=["http", "oversized", "oversized chunk", "bad request", "bad ask", "wrong way"],
)
async def test_nonsense(frame: bytes, why: str, caplog: pytest.LogCaptureFixture) -> None:
    async with owning() as owner, raw(owner) as (end, wire):
        with caplog.at_level(logging.WARNING):
            wire.write(frame)
            await end.is_lost.wait()
        assert "bulk connection with raw ends" in caplog.text and why in caplog.text
        assert not owner.server._connections


async def test_two_requests_with_one_id() -> None:
    async with owning() as owner, raw(owner) as (end, wire):
        region = owner.add(bytearray(DATA))
        wire.write(request_of(owner, owner.handle(region)) * 2)
        await end.is_lost.wait()
        assert region.users == 0
