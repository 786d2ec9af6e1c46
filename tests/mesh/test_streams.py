"""Streams from async generators: credit, leaving early in every way, errors at their turn, large items, many items."""

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = ma.Config().stream_items


class Source(ma.Actor):
    """Counts what it yields, and how its generators end."""

    def __init__(self) -> None:
        self.made = 0
        self.ends: list[str] = []

    @ma.endpoint
    async def numbers(self, count: int) -> AsyncIterator[int]:
        self.made = 0
        try:
            for index in range(count):
                self.made += 1
                yield index
            self.ends.append("end")
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        except GeneratorExit:
            self.ends.append("closed")
            raise
        finally:
            self.ends.append("finally")

    @ma.endpoint
    async def slow_to_end(self) -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            self.ends.append("cleaned up")

    @ma.endpoint
    async def blobs(self, sizes: list[int]) -> AsyncIterator[tuple[int, bytes]]:
        self.made = 0
        for index, size in enumerate(sizes):
            self.made += 1
            yield index, bytes([index % 256]) * size

    @ma.endpoint
    async def failing(self, after: int) -> AsyncIterator[int]:
        for index in range(after):
            yield index
        raise ValueError(f"after {after}")

    @ma.endpoint
    async def dying(self, after: int) -> AsyncIterator[int]:
        for index in range(after):
            yield index
        await asyncio.sleep(0.05)
        os._exit(3)

    @ma.endpoint
    async def unpicklable(self) -> AsyncIterator[object]:
        yield 1
        yield threading.Lock()
        yield 2

    @ma.endpoint
    async def progress(self) -> tuple[int, list[str]]:
        return self.made, self.ends

    @ma.endpoint
    async def reset(self) -> None:
        self.made, self.ends = 0, []

    @ma.endpoint
    async def relay(self, other: "Source", count: int) -> AsyncIterator[int]:
        async for item in other.numbers.stream_one(count):
            yield item * 10


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sources(hosts: ma.HostMesh) -> Source:
    procs = await hosts.spawn_procs({"gpus": 2}, name="streams")
    return await procs.spawn("sources", Source)


@pytest_asyncio.fixture(loop_scope="module")
async def source(sources: Source) -> Source:
    await sources.reset.call()
    return sources.at(0)


async def ends(source: Source) -> list[str]:
    """What the generator has recorded once it has ended."""
    async with asyncio.timeout(5):
        while True:
            _, found = await source.progress.call_one()
            if "finally" in found or "cleaned up" in found:
                return found
            await asyncio.sleep(0.01)


async def settled(source: Source) -> int:
    """How many items the generator made, once it makes no more."""
    before = -1
    while True:
        made, _ = await source.progress.call_one()
        if made == before:
            return made
        before = made
        await asyncio.sleep(0.05)


async def test_a_slow_consumer_stops_a_fast_producer(source: Source) -> None:
    stream = source.numbers.stream_one(100_000)
    for expected in range(10):
        assert await anext(stream) == expected
    assert await settled(source) <= 10 + LIMIT
    taken = 10
    async for _ in stream:
        taken += 1
        if taken == 1000:
            break
    assert 1000 <= await settled(source) <= 1000 + LIMIT
    await stream.aclose()
    assert "finally" in (await source.progress.call_one())[1]


async def test_bytes_are_credit_too(source: Source) -> None:
    """Large items stop the producer long before their number does."""
    size = 4 << 20
    stream = source.blobs.stream_one([size] * 40)
    first = await anext(stream)
    assert first == (0, bytes(size))
    assert await settled(source) <= 1 + (ma.Config().stream_bytes // size) + 1
    assert [index async for index, _ in stream] == list(range(1, 40))


async def test_items_keep_their_order_whatever_their_size(source: Source) -> None:
    sizes = [10, 3_000_000, 20, 5000, 400_000, 1, 70_000, 2_000_000, 2]
    items = [(index, len(blob)) async for index, blob in source.blobs.stream_one(sizes)]
    assert items == list(enumerate(sizes))


async def test_ten_thousand_items(source: Source) -> None:
    assert [item async for item in source.numbers.stream_one(10_000)] == list(range(10_000))
    assert await ends(source) == ["end", "finally"]


async def test_an_empty_stream(source: Source) -> None:
    assert [item async for item in source.numbers.stream_one(0)] == []


async def test_breaking_out_of_the_loop_cancels_the_generator(source: Source) -> None:
    async for item in source.numbers.stream_one(100_000):
        if item == 3:
            break
    assert (await ends(source))[-1] == "finally"
    assert await settled(source) <= 4 + LIMIT


async def test_aclose_waits_until_the_generator_has_cleaned_up(source: Source) -> None:
    stream = source.slow_to_end.stream_one()
    assert await anext(stream) == 1
    await stream.aclose()
    assert (await source.progress.call_one())[1] == ["cleaned up"]
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_leaving_its_block_closes_a_stream(source: Source) -> None:
    async with source.slow_to_end.stream_one() as stream:
        assert await anext(stream) == 1
    assert (await source.progress.call_one())[1] == ["cleaned up"]


async def test_an_exception_in_the_loops_body_cancels_the_generator(source: Source) -> None:
    with pytest.raises(RuntimeError, match="mine"):
        async for _ in source.numbers.stream_one(100_000):
            raise RuntimeError("mine")
    assert (await ends(source))[-1] == "finally"


async def test_cancelling_the_consumer_cancels_the_generator(source: Source) -> None:
    async def consume() -> None:
        async for _ in source.slow_to_end.stream_one():
            pass

    task = asyncio.create_task(consume())
    while not active_router().pending:
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ends(source) == ["cleaned up"]


async def test_a_deadline_ends_the_wait_and_the_stream_goes_on(source: Source) -> None:
    stream = source.slow_to_end.stream_one()
    assert await anext(stream) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await anext(stream)
    await stream.aclose()
    assert await ends(source) == ["cleaned up"]


async def test_a_dropped_stream_cancels_the_generator(source: Source) -> None:
    stream = source.numbers.stream_one(100_000)
    await anext(stream)
    del stream
    gc.collect()
    assert (await ends(source))[-1] == "finally"


async def test_a_stream_never_asked_is_ended_too(source: Source) -> None:
    source.numbers.stream_one(100_000)
    gc.collect()
    assert "finally" in await ends(source)


async def test_an_error_comes_after_the_items_before_it(source: Source) -> None:
    seen: list[int] = []
    with pytest.raises(ValueError, match="after 200") as caught:
        async for item in source.failing.stream_one(200):
            seen.append(item)
    assert seen == list(range(200))
    assert isinstance(caught.value, ma.RemoteError)
    assert caught.value.endpoint == "failing"


async def test_an_item_that_does_not_pickle_ends_the_stream_with_the_reason(source: Source) -> None:
    stream = source.unpicklable.stream_one()
    assert await anext(stream) == 1
    with pytest.raises(ma.PicklingError, match="unpicklable"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_two_tasks_may_not_wait_for_one_stream(source: Source) -> None:
    stream = source.slow_to_end.stream_one()
    await anext(stream)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks"):
        await anext(stream)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await stream.aclose()


async def test_the_death_of_the_proc_is_raised_after_what_it_sent(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs(name="mortal")
    mortal = await procs.spawn("mortal", Source)
    seen: list[int] = []
    with pytest.raises(ma.ProcDied) as caught:
        async for item in mortal.dying.stream_one(5):
            seen.append(item)
    assert seen == [0, 1, 2, 3, 4]
    assert caught.value.exit_code == 3


async def test_the_streams_of_a_mesh_are_merged(sources: Source) -> None:
    await sources.reset.call()
    items: dict[int, list[int]] = {0: [], 1: []}
    async for point, item in sources.numbers.stream(500):
        items[point["gpus"]].append(item)
    assert items == {0: list(range(500)), 1: list(range(500))}


async def test_leaving_a_merged_stream_ends_all_of_them(sources: Source) -> None:
    await sources.reset.call()
    seen: set[int] = set()
    async for point, _ in sources.numbers.stream(100_000):
        seen.add(point.rank)
        if len(seen) == 2:
            break
    for rank in range(2):
        assert (await ends(sources.at(rank)))[-1] == "finally"


async def test_an_error_in_one_ends_a_merged_stream_and_the_others(sources: Source) -> None:
    await sources.reset.call()
    with pytest.raises(ValueError, match="after 3"):
        async for _ in sources.failing.stream(3):
            pass


async def test_closing_a_merged_stream_that_somebody_waits_for(sources: Source) -> None:
    stream = sources.slow_to_end.stream()
    assert {(await anext(stream))[0].rank, (await anext(stream))[0].rank} == {0, 1}
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_a_stream_consumed_in_an_actor(sources: Source) -> None:
    await sources.reset.call()
    first, second = sources.at(0), sources.at(1)
    assert [item async for item in first.relay.stream_one(second, 300)] == [10 * n for n in range(300)]
    async for item in first.relay.stream_one(second, 100_000):
        if item == 50:
            break
    assert "finally" in await ends(second)


async def test_nothing_is_left_of_ended_streams(source: Source) -> None:
    async with asyncio.timeout(5):
        while active_router().pending:
            await asyncio.sleep(0.01)
