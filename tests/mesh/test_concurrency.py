"""How endpoints run: interleaved, bounded, strictly serial, on the actor's own thread; and what waits where."""

import asyncio
import importlib
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Gauge(ma.Actor):
    """Measures how many of its calls run at a time."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.started: list[int] = []
        self.gate = asyncio.Event()

    @ma.endpoint
    async def hold(self, index: int) -> int:
        self.started.append(index)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.005)
        self.running -= 1
        return index

    @ma.endpoint
    async def items(self, count: int) -> AsyncIterator[int]:
        self.started.append(-1)
        self.running += 1
        self.most = max(self.most, self.running)
        for item in range(count):
            await asyncio.sleep(0.002)
            yield item
        self.running -= 1

    @ma.endpoint
    async def at_once(self, index: int) -> int:
        """Never awaits."""
        self.started.append(index)
        return index

    @ma.endpoint
    async def wait(self) -> None:
        await self.gate.wait()

    @ma.endpoint
    async def open(self) -> None:
        self.gate.set()

    @ma.endpoint
    async def measured(self) -> tuple[int, list[int]]:
        found = self.most, self.started
        self.most, self.started = 0, []
        return found


class Few(Gauge):
    max_concurrency = 3


class Serial(Gauge):
    max_concurrency = 1

    @ma.endpoint
    def on_thread(self, index: int) -> int:
        self.started.append(index)
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(0.005)
        self.running -= 1
        return index


class Threaded(ma.Actor):
    """Plain `def` endpoints, and `async` ones beside them."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.local.born = True
        self.thread = threading.get_ident()
        self.release = threading.Event()
        self.order: list[int] = []
        self.weights = bytearray(300_000)

    @ma.endpoint
    def who(self) -> tuple[bool, bool, str]:
        return threading.get_ident() == self.thread, self.local.born, threading.current_thread().name

    @ma.endpoint
    def block(self) -> str:
        self.release.wait(10)
        return "released"

    @ma.endpoint
    def append(self, index: int) -> list[int]:
        self.order.append(index)
        return self.order

    @ma.endpoint
    def fill(self, value: int) -> bytearray:
        for index in range(0, len(self.weights), 4096):
            self.weights[index] = value
        return self.weights

    @ma.endpoint
    async def let_go(self) -> bool:
        self.release.set()
        return threading.get_ident() == self.thread

    @ma.endpoint
    def call_from_thread(self, other: Gauge) -> object:
        return other.at_once.call_one(1)


class Blocking(ma.Actor):
    @ma.endpoint
    async def block_the_loop(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    @ma.endpoint
    async def load(self, folder: str) -> None:
        sys.path.insert(0, folder)
        importlib.import_module("slow_to_import")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs(name="procs")


async def test_async_endpoints_interleave(procs: ma.ProcMesh) -> None:
    gauge = await procs.spawn("gauge", Gauge)
    assert await asyncio.gather(*[gauge.hold.call_one(index) for index in range(20)]) == list(range(20))
    most, started = await gauge.measured.call_one()
    assert most == 20
    assert started == list(range(20))


async def test_max_concurrency_bounds_them(procs: ma.ProcMesh) -> None:
    few = await procs.spawn("few", Few)
    streams = [few.items.stream_one(2) for _ in range(3)]
    calls = [few.hold.call_one(index) for index in range(12)]
    assert await asyncio.gather(*calls) == list(range(12))
    for stream in streams:
        assert [item async for item in stream] == [0, 1]
    most, started = await few.measured.call_one()
    assert most == 3
    assert started == [-1, -1, -1, *range(12)]


async def test_one_makes_an_actor_strictly_serial(procs: ma.ProcMesh) -> None:
    """Also across styles, and for endpoints that never await."""
    serial = await procs.spawn("serial", Serial)
    calls: list[asyncio.Future[int]] = []
    for index in range(0, 30, 3):
        calls += [serial.hold.call_one(index), serial.on_thread.call_one(index + 1), serial.at_once.call_one(index + 2)]
    assert await asyncio.gather(*calls) == list(range(30))
    assert await serial.measured.call_one() == (1, list(range(30)))


async def test_calls_start_in_the_order_they_came_whether_they_await_or_not(procs: ma.ProcMesh) -> None:
    gauge = await procs.spawn("gauge", Gauge)
    calls = [(gauge.at_once if index % 3 else gauge.hold).call_one(index) for index in range(60)]
    await asyncio.gather(*calls)
    assert (await gauge.measured.call_one())[1] == list(range(60))


async def test_a_waiting_call_is_let_go_by_a_later_one_of_a_full_actor_only_if_it_has_room(procs: ma.ProcMesh) -> None:
    few = await procs.spawn("few", Few)
    waiting = [few.wait.call_one() for _ in range(2)]
    await few.open.call_one()
    await asyncio.gather(*waiting)


async def test_plain_def_endpoints_share_one_thread_of_their_own(procs: ma.ProcMesh) -> None:
    first, second = await procs.spawn("first", Threaded), await procs.spawn("second", Threaded)
    found = [await first.who.call_one(), await first.who.call_one(), await second.who.call_one()]
    assert found == [(True, True, "actor first"), (True, True, "actor first"), (True, True, "actor second")]


async def test_the_loop_answers_while_a_plain_def_works(procs: ma.ProcMesh) -> None:
    threaded = await procs.spawn("threaded", Threaded)
    gauge = await procs.spawn("gauge", Gauge)
    blocked = threaded.block.call_one()
    behind = threaded.append.call_one(1)
    assert await gauge.at_once.call_one(3) == 3
    assert not behind.done()
    assert await threaded.let_go.call_one() is False  # an async endpoint of the same actor, on the loop
    assert await blocked == "released"
    assert await behind == [1]


async def test_plain_def_endpoints_run_in_order_one_at_a_time(procs: ma.ProcMesh) -> None:
    threaded = await procs.spawn("threaded", Threaded)
    results = await asyncio.gather(*[threaded.append.call_one(index) for index in range(50)])
    assert results == [list(range(index + 1)) for index in range(50)]


async def test_what_a_plain_def_returned_is_not_changed_by_the_next_one(procs: ma.ProcMesh) -> None:
    """The result is on its way while the thread already works on the next call."""
    threaded = await procs.spawn("threaded", Threaded)
    filled = await asyncio.gather(*[threaded.fill.call_one(value) for value in range(100)])
    assert [set(result[::4096]) for result in filled] == [{value} for value in range(100)]


async def test_a_call_made_on_another_thread_says_how_to_do_it(procs: ma.ProcMesh) -> None:
    threaded = await procs.spawn("threaded", Threaded)
    gauge = await procs.spawn("gauge", Gauge)
    with pytest.raises(ma.BadCall, match=r"run_coroutine_threadsafe"):
        await threaded.call_from_thread.call_one(gauge)
    with pytest.raises(ma.BadCall, match="made on the thread"):
        await asyncio.to_thread(gauge.at_once.call_one, 1)
    with pytest.raises(ma.BadCall, match="made on the thread"):
        await asyncio.to_thread(procs.spawn, "never", Gauge)
    assert (await gauge.measured.call_one())[1] == []
    assert not active_router().pending


async def test_a_blocked_loop_is_reported_with_its_stack(hosts: ma.HostMesh, capfd: pytest.CaptureFixture[str]) -> None:
    procs = await hosts.spawn_procs(name="blocking")
    blocking = await procs.spawn("sleeper", Blocking)
    await blocking.block_the_loop.call_one(0.5)
    await procs.stop()
    said = capfd.readouterr().err
    assert "sleeper" in said
    assert "100 ms" in said
    assert "time.sleep(seconds)" in said
    assert "plain `def`" in said


async def test_an_import_that_blocks_the_loop_is_shown_without_the_import_system(
    hosts: ma.HostMesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of a chain of imports brought five lines of that: some hundred for one module."""
    (tmp_path / "slow_to_import.py").write_text("import slow_inside")
    (tmp_path / "slow_inside.py").write_text("import time; time.sleep(0.5)")
    procs = await hosts.spawn_procs(name="blocking")
    blocking = await procs.spawn("importer", Blocking)
    await blocking.load.call_one(str(tmp_path))
    await procs.stop()
    said = capfd.readouterr().err
    assert "preload what it imports" in said and "time.sleep(0.5)" in said and "import slow_inside" in said
    assert "frozen" not in said
