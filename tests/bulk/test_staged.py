"""Pieces through segments: right, whatever goes wrong meanwhile, and nothing left."""

import asyncio
import dataclasses
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from owner import Owner, a_link, an_owner, pattern

from monarch_async.bulk import stage, staged
from monarch_async.bulk.arena import Arena, forget_mappings
from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.staged import Staged, local_operations
from monarch_async.bulk.stream import BulkLink
from monarch_async.errors import BadFrame, StaleHandle, TransferBroken, TransferError

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner() -> AsyncIterator[Owner]:
    async with an_owner() as owner:
        yield owner
    forget_mappings()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def link(owner: Owner) -> AsyncIterator[BulkLink]:
    region = await owner.register(0, 1)
    async with a_link(region.endpoint) as link:
        yield link


@pytest_asyncio.fixture(loop_scope="module")
async def way(link: BulkLink) -> AsyncIterator[Staged]:
    arena = Arena()
    way = Staged(link._endpoint, link, arena)
    yield way
    await way.aclose()
    arena.close()


class Peer:
    """Who asks, in tests within one process."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)


class OwnPlane:
    """An owner in this very process, and a link to it; ``before`` is called before each operation."""

    is_open = True

    def __init__(self, memory: bytearray, is_writable: bool = True) -> None:
        self.regions, self.arena, self.peer = Regions(), Arena(), Peer()
        self.operations = local_operations(self.regions, self.arena)
        self.region = self.regions.add([memoryview(memory)], is_writable)
        beacon = self.regions.beacon
        self.endpoint = Endpoint(b"cluster!", 1, "me", this_machine(), os.getpid(), beacon.address, beacon.nonce)
        self.before: Callable[[str], None] = lambda operation: None
        self.asked: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def remote(self) -> RemoteRegion:
        region = self.region
        return RemoteRegion(self.endpoint, region.id, region.stamp, region.id, (), region.is_writable, (), "weights")

    async def ask(self, operation: str, *arguments: object) -> Any:
        self.asked.append(operation)
        self.before(operation)
        task = asyncio.create_task(self.operations[operation](self.peer, list(arguments)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await task  # cancelling this cancels the operation, as it does over a link


def views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


def progress(count: int) -> None:
    pass


# -- right bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 65_536, (8 << 20) + 1, 50 << 20])
async def test_every_size(owner: Owner, way: Staged, size: int) -> None:
    region, moved = await owner.register(3, size // 3, size - size // 3), []
    (into,) = views(size)
    await way.read(region, [(0, size)], [into], moved.append)
    assert into == pattern(3, size)
    assert sum(moved) == size
    source = pattern(4, size)
    moved.clear()
    await way.write(region, [(0, size)], [memoryview(source)], moved.append)
    assert await owner.ask("digest", region.id) == hashlib.sha256(source).hexdigest()
    assert sum(moved) == size
    await asyncio.wait_for(owner.ask("remove", region.id), 5)


async def test_every_cut(owner: Owner, way: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans, runs, views, pieces and slices are cut independently of each other."""
    monkeypatch.setattr(staged, "MOST_BYTES", 10_000)
    monkeypatch.setattr(staged, "MOST_RUNS", 30)
    cuts = [1, 0, 100_000, 7, 300_000, 3]
    region, whole = await owner.register(5, *cuts), bytearray(pattern(5, sum(cuts)))
    for step, length in [(150, 1), (150, 149), (40_000, 39_999)]:
        runs = [(offset, length) for offset in range(5, len(whole) - length, step)]
        expected = b"".join(whole[offset : offset + length] for offset, length in runs)
        into = views(0, len(expected) // 3, 0, 1, len(expected) - len(expected) // 3 - 1)
        await way.read(region, runs, into, progress)
        assert b"".join(into) == expected
        new = pattern(step, len(expected))
        await way.write(region, runs, [memoryview(new)[:77], memoryview(new)[77:]], progress)
        for index, (offset, _) in enumerate(runs):
            whole[offset : offset + length] = new[index * length : (index + 1) * length]
        assert await owner.ask("digest", region.id) == hashlib.sha256(whole).hexdigest()
    await owner.ask("remove", region.id)


async def test_nothing_at_all(owner: Owner, way: Staged) -> None:
    region = await owner.register(5, 0)
    for move in (way.read, way.write):
        await move(region, [(0, 0)], views(0), progress)
        await move(region, [], [], progress)
    await owner.ask("remove", region.id)


async def test_many_at_once(owner: Owner, way: Staged) -> None:
    """They share the slots, and do not get each other's bytes."""
    regions = [await owner.register(seed, 300_000 + seed) for seed in range(32)]
    into = views(*[300_000 + seed for seed in range(32)])

    async def one(seed: int) -> None:
        size = 300_000 + seed
        await way.read(regions[seed], [(0, size)], [into[seed]], progress)
        await way.write(regions[31 - seed], [(0, 1000)], [memoryview(bytes([seed]) * 1000)], progress)

    await asyncio.gather(*map(one, range(32)))
    for seed, region in enumerate(regions):
        mine, theirs = pattern(seed, 300_000 + seed), bytes([31 - seed]) * 1000
        assert into[seed][1000:] == mine[1000:] and bytes(into[seed][:1000]) in (mine[:1000], theirs)
        assert await owner.ask("digest", region.id) == hashlib.sha256(theirs + mine[1000:]).hexdigest()
        await owner.ask("remove", region.id)


async def test_slots_are_used_again_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "MOST_BYTES", 10_000)
    memory = bytearray(pattern(1, 500_000))
    plane = OwnPlane(memory)
    way = Staged(plane.endpoint, plane, Arena())
    (into,) = views(500_000)
    await way.read(plane.remote, [(0, 500_000)], [into], progress)
    assert into == memory
    await way.aclose()
    assert plane.asked.count("clear") == 1 and plane.asked.count("stage") == 50
    assert plane.arena.idle_bytes == staged._LANES * (64 << 10), "one segment for each lane, given back"
    plane.arena.close()
    forget_mappings()


# -- what is asked for in vain -----------------------------------------------------------------------------------------


async def test_stale_handles(owner: Owner, way: Staged) -> None:
    old = await owner.register(6, 1000)
    new = await owner.advance(old)
    for move in (way.read, way.write):
        with pytest.raises(StaleHandle, match="epoch"):
            await move(old, [(0, 1000)], views(1000), progress)
    await owner.ask("remove", new.id)
    for move in (way.read, way.write):
        with pytest.raises(StaleHandle):
            await move(new, [(0, 1000)], views(1000), progress)


async def test_read_only_regions(owner: Owner, way: Staged) -> None:
    region = await owner.register(6, 1000, is_writable=False)
    with pytest.raises(TransferError, match="read-only"):
        await way.write(region, [(0, 1000)], views(1000), progress)
    assert await owner.ask("digest", region.id) == hashlib.sha256(pattern(6, 1000)).hexdigest()
    await owner.ask("remove", region.id)


async def test_runs_out_of_range(owner: Owner, way: Staged) -> None:
    region = await owner.register(6, 1000)
    for move in (way.read, way.write):
        for run in [(0, 1001), (-1, 10), (1000, 1)]:
            with pytest.raises(BadFrame):
                await move(region, [run], views(run[1]), progress)
    await owner.ask("remove", region.id)


async def test_pieces_that_are_too_large(owner: Owner, way: Staged, link: BulkLink) -> None:
    region = await owner.register(6, 10 << 20)
    with pytest.raises(BadFrame, match="a piece of"):
        await link.ask("stage", region.id, region.stamp, 99, [(0, 9 << 20)])
    with pytest.raises(BadFrame):
        await link.ask("stage", region.id, region.stamp, 99, [(0, -5)])
    await owner.ask("remove", region.id)


@pytest.mark.parametrize("last", range(1, 7))
@pytest.mark.parametrize("what", ["read", "write"])
async def test_removed_in_the_middle(monkeypatch: pytest.MonkeyPatch, what: str, last: int) -> None:
    """Before the first slice, between any two, and after the last one: what has been copied until then is no result."""
    monkeypatch.setattr(stage, "SLICE", 1 << 20)
    plane = OwnPlane(bytearray(4 << 20))
    regions, region, remote = plane.regions, plane.region, plane.remote
    way = Staged(plane.endpoint, plane, Arena())
    looked, find = 0, regions.find

    def look(id: int, stamp: int) -> Region:
        nonlocal looked
        looked += 1
        if looked == last:
            regions.remove(region)
        return find(id, stamp)

    monkeypatch.setattr(regions, "find", look)
    moving = getattr(way, what)(remote, [(0, 4 << 20)], views(4 << 20), progress)
    if last <= 5:
        with pytest.raises(StaleHandle):
            await moving
    else:
        await moving
    assert looked == min(last, 5)
    await asyncio.wait_for(region.wait_unused(), 5)
    await way.aclose()
    forget_mappings()


async def test_removed_between_two_pieces(owner: Owner, way: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "MOST_BYTES", 64 << 10)
    for move in (way.read, way.write):
        region = await owner.register(6, 20 << 20)
        removal: list[asyncio.Future[None]] = []

        def remove(count: int, region: RemoteRegion = region, removal: list[asyncio.Future[None]] = removal) -> None:
            if not removal:
                removal.append(owner.ask("remove", region.id))

        with pytest.raises(StaleHandle):
            await move(region, [(0, 20 << 20)], views(20 << 20), remove)
        await asyncio.wait_for(removal[0], 5)


# -- cancelling --------------------------------------------------------------------------------------------------------


async def test_cancelled_reads(owner: Owner, way: Staged) -> None:
    """At any moment; then the way is as good as before, and the owner has its memory back."""
    region, expected = await owner.register(8, 20 << 20), pattern(8, 20 << 20)
    (into,) = views(20 << 20)
    for turns in range(0, 60, 3):
        reading = asyncio.create_task(way.read(region, [(0, 20 << 20)], [into], progress))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        after = bytes(into)
        await asyncio.sleep(0)
        assert bytes(into) == after, "a cancelled one touches nothing any more"
    await way.read(region, [(0, 20 << 20)], [into], progress)
    assert into == expected
    assert await owner.ask("users", region.id) == 0
    await owner.ask("remove", region.id)


async def test_cancelled_writes(owner: Owner, way: Staged) -> None:
    """When it has ended nothing is written any more; what others write meanwhile is not what it was about."""
    region = await owner.register(8, 20 << 20)
    source = memoryview(b"a" * (20 << 20))
    for turns in range(0, 60, 3):
        writing = asyncio.create_task(way.write(region, [(0, 20 << 20)], [source], progress))
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert await owner.ask("users", region.id) == 0
    new = pattern(9, 20 << 20)
    await way.write(region, [(0, 20 << 20)], [memoryview(new)], progress)
    assert await owner.ask("digest", region.id) == hashlib.sha256(new).hexdigest()
    await owner.ask("remove", region.id)


async def test_a_slot_that_is_cleared_while_it_is_filled() -> None:
    plane = OwnPlane(bytearray(8 << 20))
    remote = plane.remote
    staging = asyncio.create_task(plane.ask("stage", remote.id, remote.stamp, 1, [(0, 8 << 20)]))
    while not plane.region.users:
        await asyncio.sleep(0)
    await plane.ask("clear", [1])
    assert plane.arena.idle_bytes == 0, "it is being written to"
    await staging
    assert plane.arena.idle_bytes == 8 << 20
    plane.arena.close()


# -- peers that are gone -----------------------------------------------------------------------------------------------


async def test_an_owner_that_is_killed() -> None:
    for what in ("read", "write"):
        async with an_owner() as owner:
            region = await owner.register(9, 40 << 20)
            async with a_link(region.endpoint) as link:
                way = Staged(region.endpoint, link, Arena())

                def kill(count: int, owner: Owner = owner) -> None:
                    owner.process.kill()

                with pytest.raises(TransferBroken):
                    await getattr(way, what)(region, [(0, 40 << 20)], views(40 << 20), kill)
                await way.aclose()
            await owner.kill()
            assert Staged.probe(region.endpoint) == "its process is gone"
    forget_mappings()


async def test_a_reader_that_is_gone_leaves_nothing(owner: Owner) -> None:
    """Its segments are dropped, not used for others: it may still be copying."""
    region = await owner.register(9, 100)
    before = await owner.ask("things")
    async with a_link(region.endpoint) as link:
        for slot in range(5):
            await link.ask("stage", region.id, region.stamp, slot, [(0, 100)])
        assert (await owner.ask("things"))[0] > before[0]
    async with asyncio.timeout(5):
        while (now := await owner.ask("things"))[0] > before[0]:
            await asyncio.sleep(0.01)
    assert now[1] <= before[1]
    await asyncio.wait_for(owner.ask("remove", region.id), 5)


WRITER = """
import asyncio, sys
sys.path[:0] = {path!r}
from owner import a_link
from monarch_async.bulk.arena import Arena
from monarch_async.bulk.staged import Staged
from monarch_async.bulk.region import RemoteRegion
async def main():
    region = RemoteRegion.unpack(bytes.fromhex(sys.argv[1]))
    async with a_link(region.endpoint) as link:
        way = Staged(region.endpoint, link, Arena())
        size = region.size
        memory = memoryview(bytearray(size))
        def say(count):
            print("moved", flush=True)
        while True:
            await way.write(region, [(0, size)], [memory], say)
            await way.read(region, [(0, size)], [memory], say)
asyncio.run(main())
"""


async def test_a_peer_that_is_killed_in_the_middle(owner: Owner) -> None:
    region = await owner.register(3, 40 << 20)
    before = await owner.ask("things")
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER.format(path=sys.path), region.pack().hex(), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    for _ in range(12):
        assert await writer.stdout.readline() == b"moved\n"
    writer.kill()
    await writer.wait()
    await asyncio.wait_for(owner.ask("remove", region.id), 5)
    other = await owner.register(3, 10)
    async with a_link(other.endpoint) as link:
        way = Staged(other.endpoint, link, Arena())
        await way.read(other, [(0, 10)], views(10), progress)
        await way.aclose()
    assert before[0] - 20 <= (await owner.ask("things"))[0] <= before[0] + 20, "what is idle, no more"
    await owner.ask("remove", other.id)


# -- probing -----------------------------------------------------------------------------------------------------------


async def test_probes(owner: Owner) -> None:
    region = await owner.register(1, 10)
    endpoint = region.endpoint
    assert Staged.probe(endpoint) is None
    assert "another machine" in (Staged.probe(dataclasses.replace(endpoint, machine=b"elsewher")) or "")
    assert "no sockets" in (Staged.probe(dataclasses.replace(endpoint, local="", tcp="")) or "")
    await owner.ask("remove", region.id)


async def test_a_region_stays_while_a_piece_is_copied() -> None:
    """R3 of both directions is `Region.enter`."""
    plane = OwnPlane(bytearray(8 << 20))
    region, remote = plane.region, plane.remote
    staging = asyncio.create_task(plane.ask("stage", remote.id, remote.stamp, 1, [(0, 8 << 20)]))
    while not region.users:
        await asyncio.sleep(0)
    plane.regions.remove(region)
    await asyncio.wait_for(region.wait_unused(), 5)
    with pytest.raises(StaleHandle):
        await asyncio.wait_for(staging, 5)
    await plane.ask("clear", [1])
    plane.arena.close()
