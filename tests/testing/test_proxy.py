"""The fault proxy on real loopback sockets: what passes is exact, and so is every fault."""

import asyncio
import contextlib
import struct
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from monarch_async.testing.proxy import FaultProxy
from monarch_async.wire.auth import Dialer, Listener, handshake_length

DIRECTIONS = ("to_listener", "to_dialer")


def frame(payload):
    return struct.pack("!H", len(payload)) + payload


def frame_length(buffer, offset):
    return None if len(buffer) < offset + 2 else 2 + struct.unpack_from("!H", buffer, offset)[0]


FRAMES = [frame(b"one"), frame(b"twotwo"), frame(b""), frame(b"four")]


@pytest.fixture(params=["tcp", "unix"])
def scheme(request):
    return request.param


@asynccontextmanager
async def listening(scheme, folder):
    """A listener, as (url, queue of the connections it accepts)."""
    accepted = asyncio.Queue()

    def accept(reader, writer):
        accepted.put_nowait((reader, writer))

    if scheme == "tcp":
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(accept, folder / "socket")
        url = f"unix://{folder}/socket"
    try:
        yield url, accepted
    finally:
        server.close()
        while not accepted.empty():
            accepted.get_nowait()[1].transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def dialed(url):
    parts = urlsplit(url)
    if parts.scheme == "tcp":
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    else:
        reader, writer = await asyncio.open_unix_connection(parts.path)
    try:
        yield reader, writer
    finally:
        await close(writer)


async def close(writer):
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def joined(scheme, folder, **options):
    """A proxy, a dialer, a listener: (proxy, {direction: (writer at one end, reader at the other)})."""
    options.setdefault("frame_length", frame_length)
    async with listening(scheme, folder) as (url, accepted), FaultProxy(url, **options) as proxy:
        assert proxy.url.startswith(scheme + "://")
        assert proxy.url != url
        async with dialed(proxy.url) as (reader, writer):
            peer_reader, peer_writer = await accepted.get()
            try:
                yield proxy, {"to_listener": (writer, peer_reader), "to_dialer": (peer_writer, reader)}
            finally:
                await close(peer_writer)


async def read_all(reader):
    """Return what arrives until the connection ends, in whichever way it does."""
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            data += piece
    return bytes(data)


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_bytes_pass_unchanged_and_frames_are_counted(scheme, tmp_path, direction):
    async with joined(scheme, tmp_path) as (proxy, ends):
        writer, reader = ends[direction]
        for n, data in enumerate(FRAMES, start=1):
            writer.write(data[:1])
            await writer.drain()
            writer.write(data[1:])
            assert await reader.readexactly(len(data)) == data
            await proxy.wait_frames(direction, n)
            assert proxy.frames[direction] == n
        assert sum(proxy.frames.values()) == len(FRAMES)


async def test_a_half_closed_stream_stays_open_the_other_way(scheme, tmp_path):
    async with joined(scheme, tmp_path) as (_, ends):
        (out, at_listener), (back, at_dialer) = ends.values()
        out.write(FRAMES[0] + b"\0")  # and an incomplete frame
        out.write_eof()
        assert await at_listener.read() == FRAMES[0] + b"\0"
        back.write(FRAMES[1])
        assert await at_dialer.readexactly(len(FRAMES[1])) == FRAMES[1]
        back.write_eof()
        assert await at_dialer.read() == b""


async def test_large_frames_pass(scheme, tmp_path):
    big = [frame(bytes([n]) * 65_535) for n in range(100)]
    async with joined(scheme, tmp_path) as (proxy, ends):
        writer, reader = ends["to_listener"]
        writer.write(b"".join(big))
        assert await reader.readexactly(sum(map(len, big))) == b"".join(big)
        assert proxy.frames["to_listener"] == len(big)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("after_bytes", [0, 1, 7])
async def test_cut_closes_both_sides_in_the_middle_of_that_frame(scheme, tmp_path, direction, after_bytes):
    async with joined(scheme, tmp_path) as (proxy, ends):
        hit = proxy.cut(direction, at_frame=2, after_bytes=after_bytes)
        writer, reader = ends[direction]
        _, own_reader = ends[DIRECTIONS[direction == "to_listener"]]
        writer.write(b"".join(FRAMES))
        assert await read_all(reader) == FRAMES[0] + FRAMES[1][:after_bytes]
        assert await read_all(own_reader) == b""
        assert hit.is_set()
        assert proxy.frames[direction] == 1


async def test_frames_are_numbered_on_over_a_new_connection(scheme, tmp_path):
    async with listening(scheme, tmp_path) as (url, accepted):
        async with FaultProxy(url, frame_length=frame_length) as proxy:
            proxy.cut("to_listener", at_frame=2)
            proxy.cut("to_listener", at_frame=3, after_bytes=1)
            received = []
            for _ in range(3):
                async with dialed(proxy.url) as (_, writer):
                    reader, peer_writer = await accepted.get()
                    writer.write(FRAMES[0] + FRAMES[1])
                    writer.write_eof()
                    received.append(await read_all(reader))
                    await close(peer_writer)
            assert received == [FRAMES[0], FRAMES[0] + FRAMES[1][:1], FRAMES[0] + FRAMES[1]]
            assert (proxy.frames["to_listener"], proxy.connections) == (4, 3)


@pytest.mark.parametrize(("offset", "changed"), [(2, b"\0\3\x90ne"), (-1, b"\0\3on\x9a")])
async def test_corrupt_inverts_one_byte(scheme, tmp_path, offset, changed):
    async with joined(scheme, tmp_path) as (proxy, ends):
        hit = proxy.corrupt("to_listener", at_frame=1, offset=offset)
        writer, reader = ends["to_listener"]
        writer.write(FRAMES[0] + FRAMES[0])
        assert await reader.readexactly(10) == changed + FRAMES[0]
        assert hit.is_set()


async def test_duplicate_passes_a_frame_twice(scheme, tmp_path):
    async with joined(scheme, tmp_path) as (proxy, ends):
        hit = proxy.duplicate("to_dialer", at_frame=2)
        writer, reader = ends["to_dialer"]
        writer.write(FRAMES[0] + FRAMES[1] + FRAMES[3])
        writer.write_eof()
        assert await reader.read() == FRAMES[0] + FRAMES[1] * 2 + FRAMES[3]
        assert hit.is_set()
        assert proxy.frames["to_dialer"] == 3


async def test_a_freeze_holds_everything_until_the_thaw(scheme, tmp_path):
    async with joined(scheme, tmp_path) as (proxy, ends):
        hit = proxy.freeze_at("to_listener", at_frame=2)
        (out, at_listener), (back, at_dialer) = ends.values()
        out.write(b"".join(FRAMES))
        await hit.wait()
        back.write(FRAMES[0])
        assert await at_listener.readexactly(len(FRAMES[0])) == FRAMES[0]
        pending = [asyncio.create_task(reader.readexactly(1)) for reader in (at_listener, at_dialer)]
        _, waiting = await asyncio.wait(pending, timeout=0.05)
        assert len(waiting) == 2
        assert proxy.frames == {"to_listener": 1, "to_dialer": 0}
        proxy.thaw()
        assert await asyncio.gather(*pending) == [FRAMES[1][:1], FRAMES[0][:1]]
        await proxy.wait_frames("to_listener", 4)


async def test_a_frozen_proxy_takes_connections_and_a_sender_feels_it(scheme, tmp_path):
    async with listening(scheme, tmp_path) as (url, accepted), FaultProxy(url) as proxy:
        proxy.freeze()
        async with dialed(proxy.url) as (_, writer):
            await proxy.wait_connections(1)
            reader, peer_writer = await accepted.get()
            for _ in range(50):
                writer.write(bytes(1 << 20))
            stuck = asyncio.create_task(writer.drain())
            assert not (await asyncio.wait([stuck], timeout=0.3))[0], "50 MiB went nowhere and were taken"
            proxy.thaw()
            assert len(await reader.readexactly(50 << 20)) == 50 << 20
            await stuck
            await close(peer_writer)


async def test_delay_is_pipelined(scheme, tmp_path):
    async with joined(scheme, tmp_path) as (proxy, ends):
        proxy.delay(0.1)
        writer, reader = ends["to_listener"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        writer.write(b"".join(FRAMES * 10))
        await reader.readexactly(len(b"".join(FRAMES * 10)))
        assert 0.09 < loop.time() - began < 1, "each frame is late, but not one after the other"


async def test_cut_now_closes_every_connection(scheme, tmp_path):
    async with listening(scheme, tmp_path) as (url, accepted), FaultProxy(url) as proxy:
        async with dialed(proxy.url) as (one, _), dialed(proxy.url) as (two, _):
            readers = [await accepted.get(), await accepted.get()]
            proxy.cut_now()
            assert await read_all(one) == await read_all(two) == b""
            for reader, writer in readers:
                assert await read_all(reader) == b""
                await close(writer)


async def test_refuse_new_leaves_what_is_connected(scheme, tmp_path):
    async with listening(scheme, tmp_path) as (url, accepted), FaultProxy(url) as proxy:
        async with dialed(proxy.url) as (_, writer):
            peer_reader, peer_writer = await accepted.get()
            proxy.refuse_new()
            async with dialed(proxy.url) as (reader, _):
                assert await read_all(reader) == b""
            writer.write(b"still there")
            assert await peer_reader.readexactly(11) == b"still there"
            await close(peer_writer)
        proxy.accept_new()
        async with dialed(proxy.url):
            await close((await accepted.get())[1])
        assert proxy.connections == 2


async def test_a_dialer_sees_its_connection_end_where_nobody_listens(scheme, tmp_path):
    async with listening(scheme, tmp_path) as (url, _):
        pass
    async with FaultProxy(url) as proxy, dialed(proxy.url) as (reader, _):
        assert await read_all(reader) == b""


HELLO = b"hello\n"


def line(head):
    return head.index(b"\n") + 1 if b"\n" in head else None


@pytest.mark.parametrize("skip", [len(HELLO), line])
async def test_a_handshake_is_passed_as_it_comes_and_not_counted(scheme, tmp_path, skip):
    async with joined(scheme, tmp_path, skip=skip) as (proxy, ends):
        proxy.cut("to_dialer", at_frame=2)
        (out, at_listener), (back, at_dialer) = ends.values()
        for byte in HELLO:
            out.write(bytes([byte]))
            assert await at_listener.readexactly(1) == bytes([byte])
        assert proxy.frames["to_listener"] == 0
        back.write(HELLO + FRAMES[0] + FRAMES[1])
        assert await read_all(at_dialer) == HELLO + FRAMES[0]
        assert proxy.frames == {"to_listener": 0, "to_dialer": 1}


async def test_the_real_handshake_is_skipped(tmp_path):
    dialer, listener = Dialer(b"token", b"d" * 32, b"I am D"), Listener(b"token", b"l" * 32, b"I am L")
    async with joined("unix", tmp_path, skip=handshake_length) as (proxy, ends):
        hit = proxy.corrupt("to_listener", at_frame=1, offset=0)
        (out, at_listener), (back, at_dialer) = ends.values()

        async def agree(end, writer, reader):
            agreed = None
            while agreed is None:
                answer, agreed = end.receive(await reader.read(1 << 16))
                writer.write(answer)

        out.write(dialer.start())
        await asyncio.gather(agree(dialer, out, at_dialer), agree(listener, back, at_listener))
        out.write(FRAMES[0])
        await hit.wait()
        assert await at_listener.readexactly(5) == b"\xff\3one"
        assert proxy.frames == {"to_listener": 1, "to_dialer": 0}


async def test_without_frame_length_bytes_pass_and_faults_at_frames_are_refused(scheme, tmp_path):
    async with joined(scheme, tmp_path, frame_length=None) as (proxy, ends):
        writer, reader = ends["to_listener"]
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        with pytest.raises(ValueError, match="needs frame_length"):
            proxy.cut("to_listener", at_frame=1)


async def test_a_fault_at_a_frame_that_has_passed_is_refused(tmp_path):
    async with joined("unix", tmp_path) as (proxy, ends):
        ends["to_listener"][0].write(FRAMES[0])
        await proxy.wait_frames("to_listener", 1)
        with pytest.raises(ValueError, match="frame 1 to_listener has passed: 1 have"):
            proxy.duplicate("to_listener", at_frame=1)


async def test_a_fault_that_does_not_fit_fails_the_test_that_set_it(tmp_path):
    async def corrupt_past_the_end():
        async with joined("unix", tmp_path) as (proxy, ends):
            proxy.corrupt("to_listener", at_frame=1, offset=99)
            writer, reader = ends["to_listener"]
            writer.write(FRAMES[0])
            assert await read_all(reader) == b""

    with pytest.raises(ValueError, match="cannot corrupt byte 99 of a frame of 5"):
        await corrupt_past_the_end()


async def test_a_wait_ends_with_what_went_wrong_in_the_proxy(tmp_path):
    async with joined("unix", tmp_path, frame_length=lambda buffer, offset: 0) as (proxy, ends):
        ends["to_dialer"][0].write(FRAMES[0])
        with pytest.raises(ValueError, match="frame_length says 0 bytes"):
            await proxy.wait_frames("to_dialer", 1)
        proxy._failure = None  # seen


def test_another_scheme_is_refused():
    with pytest.raises(ValueError, match="cannot proxy 'http://a:1'"):
        FaultProxy("http://a:1")
