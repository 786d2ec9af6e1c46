"""Memory and files of a store: what objects count, and what happens on threads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from monarch_async.bulk.arena import Segment, capacity_of
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.control.host_store import HostStore
from monarch_async.control.inquiries import Inquiries
from monarch_async.control.store_memory import Memory, StoreMemory, costs
from monarch_async.ids import address

MIB = 1 << 20


def test_small_objects_count_so_much_that_they_do_not_take_all_open_files() -> None:
    cost = costs(3_000 * MIB, open_files=9_000)
    assert cost(1) == MIB and cost(5 * MIB) == capacity_of(5 * MIB)
    assert costs(8 * MIB, open_files=1 << 20)(1) == capacity_of(1)
    assert costs(MIB, open_files=2)(1) <= MIB


@pytest_asyncio.fixture
async def plane() -> AsyncIterator[DataPlane]:
    plane = DataPlane(Config())
    yield plane
    await plane.aclose()


async def test_memory_that_is_not_kept_is_freed_on_a_thread(plane: DataPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StoreMemory(plane, "", most_idle=MIB)
    given: list[tuple[int, str]] = []
    give_back = plane.arena.give_back

    def noted(segment: Segment) -> None:
        given.append((segment.size, threading.current_thread().name))
        give_back(segment)

    monkeypatch.setattr(plane.arena, "give_back", noted)
    for id, size in ((b"small", MIB), (b"large", 2 * MIB)):
        await memory.take(id, size)
        assert memory.remove(id) is None
    async with asyncio.timeout(5):
        while len(given) < 2:
            await asyncio.sleep(0.001)
    assert given == [(MIB, "MainThread"), (2 * MIB, "store_0")]
    await memory.aclose()


async def test_a_file_is_removed_on_a_thread(plane: DataPlane, tmp_path: Path) -> None:
    memory = StoreMemory(plane, str(tmp_path), most_idle=0)
    await memory.take(b"object", MIB)
    await memory.spill(b"object")
    threads: list[str] = []

    class File:
        def close(self) -> None:
            file.close()
            threads.append(threading.current_thread().name)

    file, memory._files[b"object"] = memory._files[b"object"], File()  # type: ignore[assignment]
    memory.unlink(b"object")
    async with asyncio.timeout(5):
        while not threads:
            await asyncio.sleep(0.001)
    assert threads[0].startswith("store")
    memory.remove(b"object")
    await memory.aclose()


class SlowPlane:
    """Registers after a while, or not at all."""

    def __init__(self) -> None:
        self.regions: set[object] = set()
        self.is_broken = False

    async def add(self, spans: object, is_writable: bool, keep: object, what: str) -> tuple[object, object]:
        await asyncio.sleep(0)
        if self.is_broken:
            raise OSError("no such memory")
        region = object()
        self.regions.add(region)
        return region, Packs()

    async def remove(self, region: object) -> None:
        self.regions.remove(region)
        await asyncio.sleep(0)


class Packs:
    def pack(self) -> bytes:
        return str(id(self)).encode()


async def test_readers_who_come_at_once_get_the_same_region(plane: DataPlane) -> None:
    memory, slow = Memory(plane.arena.take(MIB)), SlowPlane()
    describing = [memory.describe(slow, b"object", False) for _ in range(3)]  # type: ignore[arg-type]
    assert len(set(await asyncio.gather(*describing))) == 1 and len(slow.regions) == 1
    await memory.withdraw(slow)  # type: ignore[arg-type]
    assert not slow.regions
    plane.arena.give_back(memory.segment)


@pytest.mark.parametrize("operation", ["alloc", "open"])
async def test_memory_that_cannot_be_offered_is_not_kept(plane: DataPlane, operation: str) -> None:
    answers: dict[int, Any] = {}

    class Desk:
        def answer(self, dst: int, call: int, value: object) -> None:
            answers[call] = value

        def is_near(self, address: int) -> bool:
            return True

    own, who, id = address(1, 0), address(1, 7), bytes(16)
    store = HostStore(own, Desk(), Inquiries(own, lambda dst: None), plane, Config(store_bytes=MIB))
    slow = SlowPlane()
    store._plane = slow  # type: ignore[assignment]
    slow.is_broken = True
    if operation == "open":
        store.take(who, 1, "alloc", id, 100)
        while 1 not in answers:
            await asyncio.sleep(0)
        store.take(who, 2, "seal", id)
    store.take(who, 3, operation, id, *([own] if operation == "open" else []), 100, True)
    async with asyncio.timeout(5):
        while 3 not in answers:
            await asyncio.sleep(0)
    assert "cannot offer it: no such memory" in answers[3]["error"]
    store.take(who, 4, "drop", id)
    assert store.facts()["objects"] == 0
    await store.aclose()
