"""Reads, writes and requests over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from stream_peers import Owner, ignore, owning, random_bytes

from monarch_async.bulk.bulk_server import Client
from monarch_async.bulk.stream import StreamTransport
from monarch_async.config import Config
from monarch_async.errors import BadFrame, StaleHandle, StoreFull, TransferBroken, TransferError

SIZES = [0, 1, 63, 4096, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 3 << 20]


@contextlib.asynccontextmanager
async def transport_to(owner: Owner, config: Config | None = None) -> AsyncIterator[StreamTransport]:
    transport = owner.transport(config)
    try:
        yield transport
    finally:
        await transport.aclose()


@pytest.mark.parametrize("size", SIZES)
async def test_read_and_write_of_any_size(size: int) -> None:
    data = random_bytes(size)
    async with owning() as owner, transport_to(owner) as transport:
        memory = bytearray(data)
        region = owner.add(memory)
        into, moved = bytearray(size), []
        await transport.read(owner.handle(region), [(0, size)], [memoryview(into)], moved.append)
        assert into == data and sum(moved) == size
        moved.clear()
        other = random_bytes(size, 1)
        await transport.write(owner.handle(region), [(0, size)], [memoryview(other)], moved.append)
        assert memory == other and sum(moved) == size
        assert region.users == 0


async def test_large_with_the_defaults() -> None:
    size = 64 << 20
    async with owning(Config()) as owner, transport_to(owner) as transport:
        memory = bytearray(random_bytes(1 << 20) * 64)
        region, into = owner.add(memory), bytearray(size)
        await transport.read(owner.handle(region), [(0, size)], [memoryview(into)], ignore)
        assert into == memory
        memory[:] = bytes(size)
        await transport.write(owner.handle(region), [(0, size)], [memoryview(into)], ignore)
        assert into == memory


async def test_views_are_cut_differently_from_runs() -> None:
    spans = [bytearray(random_bytes(size, size)) for size in (100_000, 1, 0, 70_001, 200_000)]
    space = b"".join(spans)
    runs = [(99_990, 50), (0, 10), (150_000, 150_003), (300_000, 7), (5, 0), (0, 100_000)]
    expected = b"".join(space[offset : offset + length] for offset, length in runs)
    async with owning() as owner, transport_to(owner) as transport:
        handle = owner.handle(owner.add(spans))
        into = [bytearray(size) for size in (3, 0, 120_000, 80_000)]
        into.append(bytearray(len(expected) - sum(map(len, into))))
        await transport.read(handle, runs, [memoryview(part) for part in into], ignore)
        assert b"".join(into) == expected
        source = random_bytes(150_103, 9)
        views = [memoryview(source)[:77], memoryview(source)[77:100_000], memoryview(source)[100_000:]]
        await transport.write(handle, [(99_990, 50), (150_000, 150_003), (10, 50)], views, ignore)
        after = bytearray(space)
        after[99_990:100_040], after[150_000:300_003] = source[:50], source[50:150_053]
        after[10:60] = source[150_053:]
        assert b"".join(spans) == after


async def test_thousands_of_small_runs() -> None:
    """A column of a matrix: gathered at one end, scattered at the other."""
    rows, width, size = 4000, 512, 64
    memory = bytearray(random_bytes(rows * width))
    runs = [(row * width + 128, size) for row in range(rows)]
    async with owning() as owner, transport_to(owner) as transport:
        handle, into = owner.handle(owner.add(memory)), bytearray(rows * width)
        views = [memoryview(into)[offset : offset + size] for offset, _ in runs]
        await transport.read(handle, runs, views, ignore)
        for offset, _ in runs:
            assert into[offset : offset + size] == memory[offset : offset + size]
        assert into[:128] == bytes(128)
        source = random_bytes(rows * size, 2)
        await transport.write(handle, runs, [memoryview(source)], ignore)
        assert b"".join(memory[offset : offset + size] for offset, _ in runs) == source


async def test_many_at_once_share_a_connection() -> None:
    size = 300_000
    async with owning() as owner, transport_to(owner) as transport:
        gone: list[int] = []
        memories = [bytearray(random_bytes(size, seed)) for seed in range(64)]
        handles = [owner.handle(owner.add(memory)) for memory in memories]
        intos = [bytearray(size) for _ in memories]
        async with asyncio.TaskGroup() as group:
            for index, (handle, into) in enumerate(zip(handles, intos, strict=True)):
                move = transport.write if index % 2 else transport.read
                view = memoryview(into)
                group.create_task(move(handle, [(0, size)], [view], gone.append))
        assert all(memories[i] == intos[i] for i in range(64))
        assert len(owner.server._connections) == 1
        assert sum(gone) == 64 * size


async def test_small_ones_do_not_wait_for_large_ones() -> None:
    async with owning(Config()) as owner, transport_to(owner) as transport:
        large, small = bytearray(64 << 20), bytearray(4096)
        handles = owner.handle(owner.add(large)), owner.handle(owner.add(small))
        ended: list[str] = []

        async def move(name: str, handle: Any, into: bytearray) -> None:
            await transport.read(handle, [(0, len(into))], [memoryview(into)], ignore)
            ended.append(name)

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(move("large", handles[0], bytearray(64 << 20)))
            await asyncio.sleep(0.005)  # they are on their way
            for _ in range(5):
                await move("small", handles[1], bytearray(4096))
        assert ended == ["small"] * 5 + ["large"] * 3


async def test_writes_to_what_is_read_only() -> None:
    async with owning() as owner, transport_to(owner) as transport:
        memory = bytearray(1 << 20)
        handle = owner.handle(owner.add(memory, is_writable=False))
        for size in (10, 1 << 20):
            with pytest.raises(TransferError, match="the weights: it was registered as read-only"):
                await transport.write(handle, [(0, size)], [memoryview(b"x" * size)], ignore)
        assert memory == bytes(1 << 20)
        await transport.read(handle, [(0, 10)], [memoryview(bytearray(10))], ignore)


async def test_runs_out_of_range() -> None:
    async with owning() as owner, transport_to(owner) as transport:
        handle = owner.handle(owner.add(bytearray(100)))
        with pytest.raises(BadFrame, match="bytes 50 to 101 of a region of 100"):
            await transport.read(handle, [(50, 51)], [memoryview(bytearray(51))], ignore)
        await transport.read(handle, [(50, 50)], [memoryview(bytearray(50))], ignore)


async def test_stale_handles() -> None:
    async with owning() as owner, transport_to(owner) as transport:
        region = owner.add(memory := bytearray(1000))
        old = owner.handle(region)
        owner.regions.advance(region)
        into = bytearray(b"." * 1000)
        with pytest.raises(StaleHandle, match="the weights: its epoch is over"):
            await transport.read(old, [(0, 1000)], [memoryview(into)], ignore)
        new = owner.handle(region)
        owner.regions.remove(region)
        for size in (0, 1000):
            with pytest.raises(StaleHandle, match="the weights: it is no longer registered"):
                await transport.read(new, [(0, size)], [memoryview(into)[:size]], ignore)
            with pytest.raises(StaleHandle, match="no longer registered"):
                await transport.write(new, [(0, size)], [memoryview(b"x" * size)], ignore)
        assert into == b"." * 1000 and memory == bytes(1000)


async def test_a_read_that_does_not_move_is_revoked() -> None:
    async with owning() as owner, transport_to(owner) as transport:
        owner.gate(0)
        region = owner.add(bytearray(1 << 20))
        reading = asyncio.create_task(
            transport.read(owner.handle(region), [(0, 10)], [memoryview(bytearray(10))], ignore)
        )
        while not region.users:
            await asyncio.sleep(0.001)
        owner.regions.remove(region)
        with pytest.raises(StaleHandle):
            await reading
        await region.wait_unused()


# -- requests ------------------------------------------------------------------------------------------------------


async def echo(client: Client, arguments: list[Any]) -> Any:
    return arguments


async def fail(client: Client, arguments: list[Any]) -> Any:
    raise StoreFull("object", "too large")


async def crash(client: Client, arguments: list[Any]) -> Any:
    raise ZeroDivisionError("by zero")


async def test_requests_and_answers() -> None:
    async with owning(operations={"echo": echo, "fail": fail, "crash": crash}) as owner:
        link = owner.link()
        assert not link.is_open
        assert await link.ask("echo", 1, "two", b"three", [4], None) == [1, "two", b"three", [4], None]
        assert link.is_open
        assert await link.ask("echo", b"x" * (1 << 20)) == [b"x" * (1 << 20)]
        found = await asyncio.gather(*(link.ask("echo", i) for i in range(3000)))
        assert found == [[i] for i in range(3000)]
        with pytest.raises(StoreFull, match="object: too large"):
            await link.ask("fail")
        with pytest.raises(TransferError, match="crash: ZeroDivisionError: by zero"):
            await link.ask("crash")
        with pytest.raises(TransferError, match="no such operation"):
            await link.ask("nonsense")
        await link.aclose()
        await link.aclose()
        with pytest.raises(TransferBroken, match="closed"):
            await link.ask("echo")


async def test_a_request_that_is_cancelled_is_cancelled_there() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(client: Client, arguments: list[Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with owning(operations={"wait": wait, "echo": echo}) as owner:
        link = owner.link()
        asking = asyncio.create_task(link.ask("wait"))
        await begun.wait()
        asking.cancel()
        await ended.wait()
        assert await link.ask("echo", 1) == [1]
        await link.aclose()


async def test_operations_end_with_their_client() -> None:
    gone, begun = asyncio.Event(), asyncio.Event()

    async def wait(client: Client, arguments: list[Any]) -> None:
        assert client.name.startswith("process ")
        client.on_gone(gone.set)
        begun.set()
        await asyncio.Event().wait()

    async with owning(operations={"wait": wait}) as owner:
        link = owner.link()
        asking = asyncio.create_task(link.ask("wait"))
        await begun.wait()
        await link.aclose()
        with pytest.raises(TransferBroken, match="this end is closed"):
            await asking
        await gone.wait()
        assert not owner.server._connections
        while owner.server._tasks:
            await asyncio.sleep(0)


def test_who_is_gone_is_told_at_once() -> None:
    client, told = Client("x"), []
    client.gone()
    client.on_gone(lambda: told.append(1))
    assert told == [1]


async def test_the_server_closes() -> None:
    async with owning() as owner, transport_to(owner) as transport:
        owner.gate(0)
        region = owner.add(bytearray(1 << 20))
        reading = asyncio.create_task(
            transport.read(owner.handle(region), [(0, 10)], [memoryview(bytearray(10))], ignore)
        )
        while not region.users:
            await asyncio.sleep(0.001)
        await owner.server.aclose()
        assert region.users == 0
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
