"""Memory and files of a store: what objects count, and what happens on threads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from monarch_async.bulk.arena import Segment, capacity_of
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.control.store_memory import StoreMemory, costs

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
