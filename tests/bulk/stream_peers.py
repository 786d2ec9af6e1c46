"""Both ends of bulk streams for tests; run as a program it is an owner (``own``) or a reader (``read HANDLE``)."""

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

from monarch_async.bulk.bulk_server import BulkServer, Operation
from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.served import ServedRead
from monarch_async.bulk.stream import BulkLink, StreamTransport
from monarch_async.config import Config
from monarch_async.errors import HandshakeRefused
from monarch_async.testing.proxy import FaultProxy
from monarch_async.transport.dial import listening
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.chunk import HEADER_SIZE, parse_header

KEY = b"the key of this endpoint"
#: Small chunks, so that a few hundred KiB are many.
SMALL = Config(bulk_chunk=64 << 10, bulk_window=256 << 10, bulk_retries=2.0)


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


class Gate:
    """Holds reads back where they are served in this process, at a byte of each where a chunk begins."""

    def __init__(self, at: int) -> None:
        self._at: int | None = at
        self._held: list[ServedRead] = []

    def holds(self, read: ServedRead) -> bool:
        """Whether it has come to the gate; it waits there as one does whose window is full."""
        found = read._sending.next()
        if self._at is None or found is None or found[1] <= self._at:
            return False
        assert found[0] >= self._at, "the gate is within a chunk"
        self._held.append(read)
        return True

    def open(self) -> None:
        """Let all go on."""
        self._at = None
        for read in self._held:
            read._serving.connection.offer(read, is_new=False)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Stand in the way meanwhile."""
        next_frame = ServedRead.next_frame

        def held(read: ServedRead) -> Sequence[bytes | memoryview] | None:
            return None if self.holds(read) else next_frame(read)

        with mock.patch.object(ServedRead, "next_frame", held):
            yield


@dataclass
class Owner:
    """A process's regions, and the server of them."""

    regions: Regions
    server: BulkServer
    endpoint: Endpoint
    config: Config
    until_closed: contextlib.ExitStack
    refused: list[tuple[str, HandshakeRefused]] = field(default_factory=list)

    def add(self, memory: Sequence[bytearray | memoryview] | bytearray, is_writable: bool = True) -> Region:
        parts = [memory] if isinstance(memory, bytearray) else memory
        return self.regions.add([memoryview(part) for part in parts], is_writable)

    def gate(self, at: int) -> Gate:
        """Send no more than the first ``at`` bytes of any read, until it is opened."""
        gate = Gate(at)
        self.until_closed.enter_context(gate.closed())
        return gate

    def handle(self, region: Region) -> RemoteRegion:
        spans = tuple((0, len(span)) for span in region.spans)
        return RemoteRegion(
            self.endpoint, region.id, region.stamp, region.id, spans, region.is_writable, (), "the weights"
        )

    def transport(self, config: Config | None = None, proxy: FaultProxy | None = None) -> StreamTransport:
        endpoint = self.endpoint if proxy is None else replace(self.endpoint, tcp=proxy.url.removeprefix("tcp://"))
        return StreamTransport(endpoint, config or self.config)

    def link(self, proxy: FaultProxy | None = None) -> BulkLink:
        return BulkLink(self.endpoint, self.config, Url.parse(proxy.url if proxy else f"tcp://{self.endpoint.tcp}"))

    def proxy(self) -> FaultProxy:
        return FaultProxy(f"tcp://{self.endpoint.tcp}", frame_length=frame_length, skip=handshake_length)


def frame_length(data: bytes | bytearray | memoryview, offset: int = 0) -> int | None:
    if len(data) - offset < HEADER_SIZE:
        return None
    return HEADER_SIZE + parse_header(bytes(data[offset : offset + HEADER_SIZE]), 1 << 30).length


@contextlib.asynccontextmanager
async def owning(config: Config = SMALL, operations: Mapping[str, Operation] | None = None) -> AsyncIterator[Owner]:
    regions = Regions()
    server = BulkServer(regions, config, operations or {})
    endpoint = Endpoint(b"cluster!", 1, "trainers[0] on host-07", this_machine(), os.getpid(), 0, b"n" * 16, KEY)
    owner = Owner(regions, server, endpoint, config, contextlib.ExitStack())
    refused = lambda who, why: owner.refused.append((who, why))  # noqa: E731
    tls = Tls(config)
    listen = Url.inet("127.0.0.1", 0, tls.has_certificate)
    async with listening(listen, KEY, lambda info: b"", server.take, refused, tls) as url:
        name = tls.certificate.name if url.is_tls else ""
        owner.endpoint = replace(endpoint, tcp=url.text.partition("://")[2], tls=name)
        try:
            yield owner
        finally:
            await server.aclose()
            owner.until_closed.close()


class Moved:
    """Progress that can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._more = asyncio.Event()

    def __call__(self, count: int) -> None:
        self.count += count
        self._more.set()

    async def wait(self, count: int) -> None:
        """Wait until so many bytes have moved, and no more."""
        while self.count < count:
            self._more.clear()
            await self._more.wait()
        assert self.count == count


def ignore(count: int) -> None:
    """Progress that nobody follows."""


async def own() -> None:
    """Own a region of 1 MiB, and send half of it, until killed. Says its handle."""
    async with owning() as owner:
        owner.gate(512 << 10)
        region = owner.add(bytearray(random_bytes(1 << 20)))
        print(owner.handle(region).pack().hex(), flush=True)
        await asyncio.Event().wait()


async def read(text: str) -> None:
    """Read a region, and say when half of it is there."""
    region = RemoteRegion.unpack(bytes.fromhex(text))
    transport, into, moved = StreamTransport(region.endpoint, SMALL), bytearray(region.size), Moved()
    reading = asyncio.create_task(transport.read(region, [(0, region.size)], [memoryview(into)], moved))
    await moved.wait(region.size // 2)
    print("half", flush=True)
    await reading


@contextlib.asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(own() if sys.argv[1] == "own" else read(sys.argv[2]))
