"""Both ends of bulk streams for tests; run as a program it is an owner (``own``) or a reader (``read HANDLE``)."""

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.bulk_server import BulkServer, Operation
from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.stream import BulkLink, StreamTransport
from monarch_async.config import Config
from monarch_async.errors import HandshakeRefused
from monarch_async.testing.proxy import FaultProxy
from monarch_async.transport.dial import Url, listening
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.chunk import HEADER_SIZE, parse_header

KEY = b"the key of this endpoint"
#: Small chunks, so that a few hundred KiB are many.
SMALL = Config(bulk_chunk=64 << 10, bulk_window=256 << 10, bulk_retries=2.0)


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Owner:
    """A process's regions, and the server of them."""

    regions: Regions
    server: BulkServer
    endpoint: Endpoint
    config: Config
    refused: list[tuple[str, HandshakeRefused]] = field(default_factory=list)

    def add(self, memory: Sequence[bytearray | memoryview] | bytearray, is_writable: bool = True) -> Region:
        parts = [memory] if isinstance(memory, bytearray) else memory
        return self.regions.add([memoryview(part) for part in parts], is_writable)

    def filling(self, memory: bytearray, count: int) -> tuple[Region, Arrivals]:
        """Memory of which only the first ``count`` bytes are there."""
        region = self.add(memory)
        region.arrivals = arrivals = Arrivals(len(memory))
        arrivals.add(0, count)
        return region, arrivals

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
    owner = Owner(regions, server, endpoint, config)
    refused = lambda who, why: owner.refused.append((who, why))  # noqa: E731
    async with listening(Url.parse("tcp://127.0.0.1:0"), KEY, lambda info: b"", server.take, refused) as url:
        owner.endpoint = replace(endpoint, tcp=url.text.removeprefix("tcp://"))
        try:
            yield owner
        finally:
            await server.aclose()


def ignore(count: int) -> None:
    """Progress that nobody follows."""


async def own() -> None:
    """Own a region of 1 MiB of which a half is there, until killed. Says its handle."""
    async with owning() as owner:
        region, _ = owner.filling(bytearray(random_bytes(1 << 20)), 512 << 10)
        print(owner.handle(region).pack().hex(), flush=True)
        await asyncio.Event().wait()


async def read(text: str) -> None:
    """Read a region, and say when half of it is there."""
    region = RemoteRegion.unpack(bytes.fromhex(text))
    transport, into = StreamTransport(region.endpoint, SMALL), bytearray(region.size)
    there = 0

    def progress(count: int) -> None:
        nonlocal there
        there += count
        if there == region.size // 2:
            print("half", flush=True)

    await transport.read(region, [(0, region.size)], [memoryview(into)], progress)


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
