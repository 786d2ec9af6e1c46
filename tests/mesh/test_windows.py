"""Bounded queues: calls past the window wait at the sender, a flood is refused, and nothing grows in the long run."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Sized

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime.proc import resident_bytes
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.asyncio(loop_scope="module")

WINDOW = 8
CONFIG = ma.Config(window_calls=WINDOW, window_bytes=1 << 20)


class Worker(ma.Actor):
    max_concurrency = 2

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.streams = 0
        self.gate = asyncio.Event()

    @ma.endpoint
    async def wait(self, index: int) -> int:
        self.seen.append(index)
        await self.gate.wait()
        return index

    @ma.endpoint
    async def measure(self, data: bytes) -> int:
        await asyncio.sleep(0)
        return len(data)

    @ma.endpoint
    async def streaming(self) -> AsyncIterator[int]:
        self.streams += 1
        try:
            yield self.streams
            await asyncio.Event().wait()
        finally:
            self.streams -= 1

    @ma.endpoint
    async def count_streams(self) -> int:
        return self.streams

    @ma.endpoint
    async def open(self) -> int:
        self.gate.set()
        return len(self.seen)

    @ma.endpoint
    async def taken(self) -> list[int]:
        return self.seen


class Opener(ma.Actor):
    """Opens the gate of another actor, past its mailbox: they share a proc."""

    @ma.endpoint
    async def queued(self, label: str) -> int:
        return next(len(i.mailbox) + len(i.running) for i in self.siblings() if i.label == label)

    @ma.endpoint
    async def open(self, label: str) -> None:
        for instance in self.siblings():
            if instance.label == label:
                assert isinstance(instance.actor, Worker)
                instance.actor.gate.set()

    def siblings(self):  # type: ignore[no-untyped-def]
        return ma.context().instance.proc.instances.values()


class Heavy(ma.Actor):
    def __init__(self) -> None:
        self.weights = bytes(range(256)) * (10 << 12)

    @ma.endpoint
    def weigh(self) -> int:
        return len(self.weights)


class Echo(ma.Actor):
    @ma.endpoint
    async def at_once(self, x: object) -> object:
        return x

    @ma.endpoint
    async def awaiting(self, x: object) -> object:
        await asyncio.sleep(0)
        return x

    @ma.endpoint
    def on_thread(self, x: object) -> object:
        return x

    @ma.endpoint
    async def items(self, count: int) -> AsyncIterator[int]:
        for index in range(count):
            yield index

    @ma.endpoint
    async def size_of_proc(self) -> tuple[int, int, int]:
        """Resident bytes, threads, calls pending and running."""
        gc.collect()
        proc = ma.context().instance.proc
        calls = len(proc.router.pending) + sum(len(i.running) + len(i.mailbox) for i in proc.instances.values())
        return resident_bytes(), threading.active_count(), calls + len(proc.producers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts(config=CONFIG) as hosts:
        yield hosts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs({"gpus": 2}, name="windows")


async def test_calls_past_the_window_wait_at_the_sender_and_all_complete(procs: ma.ProcMesh) -> None:
    one = procs.slice(gpus=0)
    worker, opener = await one.spawn("worker", Worker), await one.spawn("opener", Opener)
    calls = [worker.wait.call_one(index) for index in range(100)]
    while await opener.queued.call_one("worker") < WINDOW:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert await opener.queued.call_one("worker") == WINDOW  # the other 92 have not been sent
    await opener.open.call_one("worker")
    assert await asyncio.gather(*calls) == list(range(100))
    assert await worker.taken.call_one() == list(range(100))


async def test_a_mesh_past_the_window_of_one_member(procs: ma.ProcMesh) -> None:
    worker, opener = await procs.spawn("worker", Worker), await procs.spawn("opener", Opener)
    alone = [worker.at(1).wait.call_one(index) for index in range(20)]
    together = [worker.wait.call(100 + index) for index in range(20)]
    await opener.open.call("worker[0]")
    await opener.open.call("worker[1]")
    assert await asyncio.gather(*alone) == list(range(20))
    assert [list(values) for values in await asyncio.gather(*together)] == [[100 + i] * 2 for i in range(20)]
    first, second = await worker.taken.call()
    assert first == list(range(100, 120))
    assert second == [*range(20), *range(100, 120)]


async def test_bytes_are_bounded_too(procs: ma.ProcMesh) -> None:
    worker = await procs.slice(gpus=0).spawn("worker", Worker)
    data = bytes(400_000)
    calls = [worker.measure.call_one(data) for _ in range(20)]
    (path,) = [p for p in active_router()._paths.values() if p.queue]
    assert path.inflight_bytes < CONFIG.window_bytes + 500_000
    assert len(path.queue) == 17
    assert await asyncio.gather(*calls) == [400_000] * 20
    assert path.inflight == path.inflight_bytes == len(path.queue) == 0


@pytest.mark.parametrize("over", ["one member", "all members"])
async def test_a_flood_is_refused_at_its_limit_as_a_whole(procs: ma.ProcMesh, over: str) -> None:
    worker, opener = await procs.spawn("worker", Worker), await procs.spawn("opener", Opener)
    flooded: Worker = worker.at(1)
    sent = 0
    with pytest.raises(ma.Backpressure, match="await some of them before sending more"):
        for index in range(10_000):
            flooded.wait.broadcast(index)
            sent += 1
    assert sent == WINDOW + 16 * WINDOW
    pending = len(active_router().pending)
    target = worker if over == "all members" else flooded
    for call in (target.wait.broadcast, target.wait.call, target.wait.stream, target.wait.choose):
        if over == "all members" and call == target.wait.choose:
            continue  # the other member has room
        with pytest.raises(ma.Backpressure):
            call(0)
    assert len(active_router().pending) == pending
    await opener.open.call("worker[1]")
    seen: list[int] = []
    async with asyncio.timeout(10):
        while len(seen) < sent:
            seen = await flooded.taken.call_one() if not active_router().pending else []
            await asyncio.sleep(0.01)
    assert seen == list(range(sent))
    assert await worker.at(0).taken.call_one() == []  # nothing of what was refused has arrived anywhere


async def test_a_stream_refused_by_one_member_ends_at_the_others(procs: ma.ProcMesh) -> None:
    worker, opener = await procs.spawn("worker", Worker), await procs.spawn("opener", Opener)
    calls = [worker.at(1).wait.call_one(index) for index in range(WINDOW + 16 * WINDOW)]
    pending = len(active_router().pending)
    with pytest.raises(ma.Backpressure):
        worker.streaming.stream()
    async with asyncio.timeout(5):
        while len(active_router().pending) > pending:
            await asyncio.sleep(0.01)
    assert await worker.at(0).count_streams.call_one() == 0
    await opener.open.call("worker[1]")
    await asyncio.gather(*calls)


async def test_a_call_that_waits_may_be_cancelled(procs: ma.ProcMesh) -> None:
    one = procs.slice(gpus=0)
    worker, opener = await one.spawn("worker", Worker), await one.spawn("opener", Opener)
    calls = [worker.wait.call_one(index) for index in range(20)]
    calls[15].cancel()
    calls[3].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[15]
    with pytest.raises(asyncio.CancelledError):
        await calls[3]
    await opener.open.call_one("worker")
    rest = [call for index, call in enumerate(calls) if index not in (3, 15)]
    await asyncio.gather(*rest)
    assert await worker.taken.call_one() == [n for n in range(20) if n not in (3, 15)]


@pytest.mark.slow
async def test_many_calls_leave_nothing_behind(hosts: ma.HostMesh) -> None:
    """A hundred thousand calls of every kind: memory, threads and tables stay as they are."""
    procs = await hosts.spawn_procs({"gpus": 2}, name="soak")
    echo = await procs.spawn("echo", Echo)
    one = echo.at(0)

    async def round_of_calls(count: int) -> None:
        for _ in range(count // 100):
            await asyncio.gather(*[one.at_once.call_one(index) for index in range(40)])
            await asyncio.gather(*[one.awaiting.call_one({"index": index}) for index in range(20)])
            await asyncio.gather(*[one.on_thread.call_one("x" * 100) for _ in range(10)])
            await asyncio.gather(*[echo.at_once.call(index) for index in range(10)])
            echo.at_once.broadcast(1)
            assert [item async for item in one.items.stream_one(9)] == list(range(9))
            await one.at(0).at_once.choose(bytes(10_000))

    await round_of_calls(10_000)
    await asyncio.sleep(0)
    gc.collect()
    before_rss, before_threads = resident_bytes(), threading.active_count()
    before = list(await echo.size_of_proc.call())
    await round_of_calls(90_000)
    gc.collect()
    after = list(await echo.size_of_proc.call())
    assert not active_router().pending
    assert threading.active_count() == before_threads
    assert resident_bytes() - before_rss < 8 << 20
    for (rss, threads, calls), (rss_before, threads_before, calls_before) in zip(after, before, strict=True):
        assert rss - rss_before < 8 << 20
        assert threads == threads_before <= 4
        assert calls == calls_before
    assert len(active_router()._paths) < 200
    await procs.stop()


async def test_actors_that_came_and_went_leave_nothing_behind(procs: ma.ProcMesh) -> None:
    async def pass_through(times: int) -> None:
        for _ in range(times):
            mesh = await procs.spawn("passing", Heavy)
            await mesh.weigh.call()
            await mesh.stop()

    counter = await procs.spawn("counter", Echo)
    await pass_through(3)
    before = await counter.size_of_proc.call()
    tables = [len(table) for table in tables_of_the_client()]
    await pass_through(20)
    gc.collect()
    assert [len(table) for table in tables_of_the_client()] == tables
    for (rss, threads, calls), (rss_before, threads_before, calls_before) in zip(
        await counter.size_of_proc.call(), before, strict=True
    ):
        assert rss - rss_before < 30 << 20  # twenty of 10 MB each have come and gone
        assert threads <= threads_before
        assert calls == calls_before
    await counter.stop()


@pytest.mark.slow
async def test_procs_that_came_and_went_leave_nothing_behind(hosts: ma.HostMesh) -> None:
    async def pass_through(times: int) -> None:
        for _ in range(times):
            procs = hosts.spawn_procs({"gpus": 2}, name="passing")
            assert list(await procs.spawn("echo", Echo).at_once.call(1)) == [1, 1]
            await procs.stop()

    await pass_through(2)
    tables = [len(table) for table in tables_of_the_client()]
    await pass_through(5)
    assert [len(table) for table in tables_of_the_client()] == tables


def tables_of_the_client() -> list[Sized]:
    domain, router = active_domain(), active_router()
    return [domain.groups, domain.allocations, domain._tasks, router._paths, router.targets, router.pending]
