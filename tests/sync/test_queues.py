"""Queues between real processes of one host."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from sharers import Sharer

import monarch_async as ma
from monarch_async.mesh.domain import active_domain
from monarch_async.sync.parcel import unpack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_kept(hosts: ma.HostMesh) -> AsyncIterator[None]:
    """After a test no queue is in use, and no shared object is left."""
    yield
    async with asyncio.timeout(5):
        while (await hosts.status()).hosts[0].store.objects:
            await asyncio.sleep(0.01)
    assert not (await ma.cluster().locks()).rows


async def test_items_of_all_sizes_come_in_order_and_are_ones_own(sharers: Any) -> None:
    """Small ones within messages, with buffers and without, large ones as shared objects; arrays can be written to."""
    queue: ma.Queue[Any] = ma.Queue()
    items = [1, "two", np.arange(1000.0), np.arange(100_000.0), {"a": b"x" * 100_000}, None, np.arange(3)]
    puts = sharers.slice(p=0).put.call_one(queue, *items)
    for item in items:
        got = await queue.get()
        if isinstance(item, np.ndarray):
            assert (got == item).all()
            got[0] = 7
        else:
            assert got == item
    await puts
    assert await queue.qsize() == 0


async def test_what_one_puts_at_once_comes_in_that_order(sharers: Any) -> None:
    """Large ones take longer, and wait for room; nothing passes them."""
    queue: ma.Queue[Any] = ma.Queue(maxsize=3)
    sizes = [3, 100_000, 3, 3, 100_000, 100_000, 3, 100_000]
    puts = [asyncio.create_task(queue.put(np.full(size, number))) for number, size in enumerate(sizes)]
    for number, size in enumerate(sizes):
        item = await queue.get()
        assert (item == number).all() and len(item) == size
    await asyncio.gather(*puts)


async def test_a_put_that_is_refused_lets_nobody_pass(sharers: Any) -> None:
    """What was put after it passed what was put before it, where that was a large one still on its way."""
    queue: ma.Queue[Any] = ma.Queue(max_bytes=1 << 20)
    first = asyncio.create_task(queue.put(np.arange(100_000.0)))
    await asyncio.sleep(0)
    with pytest.raises(ma.BadCall, match="max_bytes"):
        await queue.put_nowait(np.arange(200_000.0))
    last = asyncio.create_task(queue.put("last"))
    assert len(await queue.get()) == 100_000
    assert await queue.get() == "last"
    await asyncio.gather(first, last)


async def test_a_full_queue_makes_producers_wait(sharers: Any) -> None:
    queue: ma.Queue[int] = ma.Queue(maxsize=2)
    puts = sharers.slice(p=0).put.call_one(queue, *range(6))
    while await queue.qsize() < 2:
        pass
    with pytest.raises(ma.Backpressure, match="2 of 2 items"):
        await queue.put_nowait(9)
    assert not puts.done()
    assert [await queue.get() for _ in range(6)] == list(range(6))
    await puts
    with pytest.raises(ma.Empty):
        await queue.get_nowait()
    await queue.put_nowait(1)
    assert await queue.get_nowait() == 1


async def test_bytes_are_bounded_too(sharers: Any) -> None:
    queue: ma.Queue[bytes] = ma.Queue(max_bytes=250_000)
    puts = sharers.slice(p=0).put.call_one(queue, *[bytes(100_000)] * 5)
    while await queue.qsize() < 2:
        pass
    with pytest.raises(ma.Backpressure, match="250,000 bytes"):
        await queue.put_nowait(bytes(100_000))
    for _ in range(5):
        assert len(await queue.get()) == 100_000
    await puts
    with pytest.raises(ma.BadCall, match="max_bytes"):
        await queue.put(bytes(300_000))


async def test_many_producers_and_consumers(sharers: Any) -> None:
    """Every item comes once."""
    queue: ma.Queue[int] = ma.Queue(maxsize=5, producers=3)
    drains = [sharers.slice(p=p).drain.call_one(queue) for p in range(3)]
    produced = [sharers.slice(p=p).produce.call_one(queue, *range(100 * p, 100 * p + 60)) for p in range(3)]
    await asyncio.gather(*produced)
    got = await asyncio.gather(*drains)
    assert sorted(item for items in got for item in items) == [100 * p + i for p in range(3) for i in range(60)]
    for items in got:  # of each producer in order
        for p in range(3):
            mine = [item for item in items if item // 100 == p]
            assert mine == sorted(mine)


async def test_references_in_items_are_kept(hosts: ma.HostMesh, sharers: Any) -> None:
    """Also when who put them has ended, and references in what is referred to."""
    queue: ma.Queue[Any] = ma.Queue()
    procs = await hosts.spawn_procs()
    await (await procs.spawn("producer", Sharer)).put_refs.call_one(queue, 3)
    await procs.stop()
    for number in range(3):
        item = await queue.get()
        first, inner = await item["ref"]
        assert first == number and (await inner == number).all()
        del item, inner


async def test_large_items_outlive_who_put_them(hosts: ma.HostMesh, sharers: Any) -> None:
    queue: ma.Queue[Any] = ma.Queue()
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs()
        await (await procs.spawn("producer", Sharer)).put_arrays.call_one(queue, 3, 100_000)
        await procs.kill()
    assert [int((await queue.get())[5]) for _ in range(3)] == [0, 1, 2]


async def test_closing(sharers: Any) -> None:
    queue: ma.Queue[int] = ma.Queue(maxsize=2)
    await queue.put(1)
    await queue.put(2)
    waits = asyncio.create_task(queue.put(3))
    while not (await ma.cluster().locks()).rows[0].waiting:
        pass
    await queue.close()
    with pytest.raises(ma.Closed):
        await waits
    assert [item async for item in queue] == [1, 2]
    for attempt in (queue.get, queue.get_nowait, lambda: queue.put(4)):
        with pytest.raises(ma.Closed):
            await attempt()
    await queue.close()
    with pytest.raises(ma.Closed):
        async with queue.producing():
            pass


async def test_a_producer_that_raises_ends_it_with_that(sharers: Any) -> None:
    queue: ma.Queue[str] = ma.Queue(producers=2)
    with pytest.raises(ValueError, match="bad episode"):
        await sharers.slice(p=0).produce_and_fail.call_one(queue, "good", ValueError("bad episode"))
    await sharers.slice(p=1).put.call_one(ma.Queue())
    got = []
    with pytest.raises(ValueError, match="bad episode") as failed:
        async for item in queue:
            got.append(item)
    assert got == ["good"]
    assert isinstance(failed.value, ma.RemoteError) and "sharers[0].produce_and_fail" in str(failed.value)
    with pytest.raises(ValueError, match="bad episode"):
        await queue.get()
    with pytest.raises(ma.Closed, match="it has failed"):
        await queue.put("more")


async def test_items_that_do_not_pickle(sharers: Any) -> None:
    queue: ma.Queue[Any] = ma.Queue()
    with pytest.raises(ma.PicklingError, match=rf"item put to {queue.name}\['lock'\]"):
        await queue.put({"lock": __import__("threading").Lock()})
    await queue.put(Unloadable())
    await queue.put(2)
    with pytest.raises(RuntimeError, match="not to be loaded") as raised:
        await queue.get()
    assert queue.name in raised.value.__notes__[0]
    assert await queue.get() == 2


class Unloadable:
    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("not to be loaded")


async def test_who_is_cancelled_gets_nothing(sharers: Any) -> None:
    """Wherever the cancel meets the item."""
    queue: ma.Queue[int] = ma.Queue()
    for number in range(12):
        gets = asyncio.create_task(queue.get())
        for _ in range(number % 3):
            await asyncio.sleep(0)
        put = asyncio.create_task(queue.put(number))
        await asyncio.sleep(0.0005 * (number // 3))
        gets.cancel()
        try:
            assert await gets == number
        except asyncio.CancelledError:
            async with asyncio.timeout(2):
                assert await queue.get() == number
        await put


async def test_who_is_cancelled_while_a_large_item_comes_gets_nothing(
    sharers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: ma.Queue[Any] = ma.Queue()
    await sharers.slice(p=0).put_arrays.call_one(queue, 2, 100_000)

    async def cancelled_midway(*arguments: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await unpack(*arguments)

    monkeypatch.setattr("monarch_async.sync.queue.unpack", cancelled_midway)
    gets = asyncio.create_task(queue.get())
    with pytest.raises(asyncio.CancelledError):
        await gets
    monkeypatch.undo()
    assert [int((await queue.get())[0]) for _ in range(2)] == [0, 1]


async def test_a_put_that_is_cancelled_while_it_waits_is_not_in(sharers: Any) -> None:
    queue: ma.Queue[Any] = ma.Queue(maxsize=1)
    await queue.put(1)
    for item in (2, np.zeros(100_000)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await queue.put(item)
    assert await queue.get() == 1
    await queue.put(3)
    assert await queue.get() == 3


async def test_a_consumer_that_dies_loses_at_most_what_was_on_its_way(hosts: ma.HostMesh, sharers: Any) -> None:
    queue: ma.Queue[int] = ma.Queue(maxsize=4)
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs()
        victim = await procs.spawn("victim", Sharer)
        drains = victim.drain.call_one(queue)
        for number in range(50):
            await queue.put(number)
        await procs.kill()
        with pytest.raises(ma.ProcDied):
            await drains
    last = asyncio.ensure_future(queue.put(-1))  # waits, where it was full when the consumer died
    left: list[int] = []
    while (item := await queue.get()) != -1:
        left.append(item)
    await last
    assert left == list(range(50 - len(left), 50)) and len(left) <= 4


@pytest.mark.parametrize(
    "request_",
    [
        ["request", 3, [1], "acquire", [1], [1, 1, "n", "", "w"]],
        ["request", "lock x", [1], "acquire", [1], ["1", 1, "n", "", "w"]],
        ["request", "lock x", [1], "acquire", [1], [1]],
        ["request", "queue x", [1, 1, 0], "fill", [1, None, [[b"short", 1, 1]]], [1, 1, "n", "", "w"]],
        ["cancel", "lock x"],
        ["forget"],
    ],
)
async def test_requests_that_make_no_sense_are_refused(hosts: ma.HostMesh, request_: list[Any]) -> None:
    with pytest.raises(ma.Error, match="bad request"):
        await active_domain().requests.ask(ma.Lock()._home, "sync", *request_)
