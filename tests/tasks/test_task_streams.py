"""Tasks that are async generators."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from task_functions import (
    add,
    count_on,
    count_to,
    die_before_items,
    die_between_items,
    lock_and_wait,
    note_and_count,
    pids,
    relay_items,
)
from task_waits import wait_given_back, wait_noted, wait_until

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_items_and_the_end(hosts: ma.HostMesh) -> None:
    assert [item async for item in ma.task(count_to).stream(1000)] == list(range(1000))
    assert [item async for item in ma.task(count_to).stream(0)] == []
    ref = await ma.put(7)
    assert len([item async for item in ma.task(count_to).stream(ref)])  # type: ignore[arg-type] == 7
    refs = [item async for item in ma.task(count_to, as_ref=True).stream(2)]
    assert [await ref for ref in refs] == [0, 1]  # type: ignore[misc]
    assert ma.task_status().functions == ()


async def test_an_error_comes_at_its_turn(hosts: ma.HostMesh) -> None:
    stream = ma.task(count_to).stream(2, error="no more")
    assert [await anext(stream), await anext(stream)] == [0, 1]
    with pytest.raises(ValueError, match="no more") as info:
        await anext(stream)
    assert str(info.value).startswith("task.count_to on host")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_it_runs_ahead_as_far_as_the_credit_goes(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """I2."""
    credit = ma.Config().stream_items
    async with ma.task(note_and_count).stream(str(tmp_path)) as stream:
        assert await anext(stream) == 0
        await wait_until(lambda: len(list(tmp_path.iterdir())) >= credit)
        await asyncio.sleep(0.05)
        assert len(list(tmp_path.iterdir())) <= credit + 1
        for number in range(1, 2 * credit):
            assert await anext(stream) == number


@pytest.mark.parametrize("way", ["close", "drop", "cancel", "before"])
async def test_who_leaves_cancels_it(hosts: ma.HostMesh, way: str) -> None:
    """I2. It sees that, and what it holds is given back."""
    lock = ma.Lock()
    stream = ma.task(lock_and_wait).stream(lock)
    if way != "before":
        assert await anext(stream) == "locked"
    match way:
        case "close" | "before":
            await stream.aclose()
        case "drop":
            del stream
        case "cancel":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01), stream:
                    await anext(stream)
    async with asyncio.timeout(5):
        await lock.acquire()
    await wait_given_back()
    assert ma.task_status().functions == ()


async def test_it_is_tried_again_before_its_first_item_only(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """I1."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert [item async for item in ma.task(die_before_items).stream(str(first), 2)] == [3, 4]
    assert len(set(pids(first))) == 3
    items = []
    with pytest.raises(ma.ProcDied, match="SIGKILL"):
        async for item in ma.task(die_between_items).stream(str(second)):
            items.append(item)
    assert items == [0] and len(pids(second)) == 1
    items.clear()
    with pytest.raises(ConnectionError):
        async for item in ma.task(count_to, retry_on=ValueError).stream(2, error="no more", cls=ConnectionError):
            items.append(item)
    assert items == [0, 1]


async def test_in_tasks(hosts: ma.HostMesh) -> None:
    """C3: who reads lends its cpu, however deep."""
    assert [item async for item in ma.task(relay_items).stream(6, 20)] == list(range(20))
    async with ma.task(relay_items).stream(3, 1_000_000) as stream:
        assert await anext(stream) == 0
    await wait_given_back()


async def test_wrong_uses_are_said_at_once(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.BadCall, match=r"async generator.*\.stream"):
        ma.submit(count_to, 1)
    with pytest.raises(ma.BadCall, match=r"async generator.*\.stream"):
        ma.map_unordered(count_to, [1])
    with pytest.raises(ma.BadCall, match=r"no async generator.*\.submit"):
        ma.task(add).stream(1)  # type: ignore[misc]
    with pytest.raises(ma.BadDemand, match="returns="):
        ma.task(count_to, returns=2).stream(1)
    with pytest.raises(ma.Unschedulable):
        async for _ in ma.task(count_to, cpus=99).stream(1):
            pass


async def test_an_item_that_does_not_pickle(hosts: ma.HostMesh) -> None:
    async def locks() -> AsyncIterator[object]:
        import threading

        yield 1
        yield threading.Lock()

    stream = ma.task(locks).stream()
    assert await anext(stream) == 1
    with pytest.raises(ma.PicklingError, match="lock"):
        await anext(stream)


async def test_many_at_once(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async def total(stream: ma.Stream[int]) -> int:
        return sum([item async for item in stream])

    assert await asyncio.gather(*[total(ma.task(count_to).stream(20)) for _ in range(50)]) == [190] * 50
    endless = [ma.task(count_on).stream(str(tmp_path)) for _ in range(10)]
    await wait_noted(tmp_path)
    await asyncio.gather(*[stream.aclose() for stream in endless])
    await wait_given_back()
