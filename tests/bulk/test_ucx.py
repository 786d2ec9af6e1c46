"""Reads and writes over UCX between real processes: on TCP alone, and where CMA reads the memory."""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from ucx_link import OneLink
from ucx_owner import pattern

from monarch_async.bulk.region import Regions, RemoteRegion
from monarch_async.bulk.ucx import Ucx, open_worker
from monarch_async.bulk.ucx_library import CONNECTION_RESET
from monarch_async.bulk.ucx_worker import UcxWorker
from monarch_async.errors import BadFrame, StaleHandle, TransferBroken, TransferError

OWNER = Path(__file__).parent / "ucx_owner.py"
MB = 1 << 20

pytestmark = pytest.mark.asyncio(loop_scope="module")


def ignore(size: int) -> None:
    pass


@dataclass
class Owner:
    """Another process that owns memory, and the way to it."""

    process: asyncio.subprocess.Process
    link: OneLink
    ucx: Ucx

    async def make(self, *sizes: int, is_writable: bool = False) -> RemoteRegion:
        return RemoteRegion.unpack(await self.link.ask("make", sizes, is_writable))

    async def read(self, region: RemoteRegion, *runs: tuple[int, int]) -> bytes:
        into = memoryview(bytearray(sum(size for _, size in runs)))
        await self.ucx.read(region, runs, [into], ignore)
        return bytes(into)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextlib.asynccontextmanager
async def an_owner(worker: UcxWorker) -> AsyncIterator[Owner]:
    socket = f"monarch-async-test-{secrets.token_hex(8)}"
    process = await asyncio.create_subprocess_exec(sys.executable, OWNER, socket, stdout=asyncio.subprocess.PIPE)
    link = None
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        link = await OneLink.open("owner", socket)
        region = RemoteRegion.unpack(await link.ask("make", [1], False))
        ucx = Ucx(region.endpoint, worker, link)
        yield Owner(process, link, ucx)
        await ucx.aclose()
        with contextlib.suppress(TransferBroken):
            await link.ask("end")
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if link is not None:
            await link.aclose()


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["tcp,posix,cma", pytest.param("tcp", marks=pytest.mark.slow)]
)
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[UcxWorker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UCX_TLS", request.param)
        opened = open_worker(Regions().beacon, is_loopback_only=True)
        assert isinstance(opened, UcxWorker), opened
        yield opened
        await opened.aclose()
        await opened.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner(worker: UcxWorker) -> AsyncIterator[Owner]:
    """For tests that leave it as it is."""
    async with an_owner(worker) as owner:
        await owner.ucx.connect()
        yield owner


async def test_the_way_that_is_taken(worker: UcxWorker, owner: Owner) -> None:
    way = await owner.ucx.connect()
    assert way.is_one_sided == ("cma" in os.environ["UCX_TLS"])
    assert "tcp" in way.transports()
    assert Ucx.probe((await owner.make(1)).endpoint) is None
    assert await owner.ucx.connect() is way


async def test_get(owner: Owner) -> None:
    size = 9 * MB + 3
    region = await owner.make(size)
    into = memoryview(bytearray(size))
    told: list[int] = []
    await owner.ucx.read(region, [(0, size)], [into[:5], into[5 : 6 * MB], into[6 * MB :]], told.append)
    assert into == pattern(size)
    assert sum(told) == size
    assert len(told) >= 3
    assert await owner.read(region, (size - 1, 1)) == pattern(size)[-1:]
    await owner.link.ask("remove", region.id)


async def test_runs_over_spans_of_any_size(owner: Owner) -> None:
    region = await owner.make(10, 0, 1, 5000, 3)
    whole = pattern(5014)
    assert await owner.read(region, (0, 5014)) == whole
    assert await owner.read(region, (5, 10), (0, 0), (5008, 6), (0, 1)) == whole[5:15] + whole[5008:] + whole[:1]
    assert await owner.read(region) == b""
    with pytest.raises(BadFrame):
        await owner.read(region, (0, 1), (5010, 5))


async def test_put_is_there_when_it_returns(owner: Owner) -> None:
    region = await owner.make(3 * MB, 5 * MB, is_writable=True)
    source = bytes(reversed(pattern(7 * MB)))
    told: list[int] = []
    await owner.ucx.write(region, [(MB, 7 * MB)], [memoryview(source)], told.append)
    assert await owner.link.ask("peek", region.id, 0, 8 * MB) == pattern(MB) + source
    assert sum(told) == 7 * MB


async def test_put_to_what_may_only_be_read(owner: Owner) -> None:
    region = await owner.make(100)
    with pytest.raises(TransferError):
        await owner.ucx.write(region, [(0, 3)], [memoryview(b"abc")], ignore)
    assert await owner.read(region, (0, 100)) == pattern(100)


async def test_many_at_once(owner: Owner) -> None:
    region = await owner.make(*[100 + i for i in range(64)])
    whole = pattern(region.size)
    big = await owner.make(20 * MB)
    reads = [owner.read(region, (i * 60, 200), (i, 3)) for i in range(64)]
    *found, all_of_it = await asyncio.gather(*reads, owner.read(big, (0, 20 * MB)))
    assert found == [whole[i * 60 : i * 60 + 200] + whole[i : i + 3] for i in range(64)]
    assert all_of_it == pattern(20 * MB)


async def test_many_runs_leave_the_loop_to_others(owner: Owner) -> None:
    region = await owner.make(MB)
    runs = [(i * 7 % MB, 1) for i in range(2000)]
    reading = asyncio.create_task(owner.read(region, *runs))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert reading.result() == bytes(pattern(MB)[offset] for offset, _ in runs)
    assert turns > 20


async def test_a_stale_handle(owner: Owner) -> None:
    region = await owner.make(100, is_writable=True)
    newer = RemoteRegion.unpack(await owner.link.ask("advance", region.id))
    with pytest.raises(StaleHandle):
        await owner.read(region, (0, 100))
    with pytest.raises(StaleHandle):
        await owner.ucx.write(region, [(0, 1)], [memoryview(b"x")], ignore)
    assert await owner.read(newer, (0, 100)) == pattern(100)
    await owner.link.ask("remove", region.id)
    with pytest.raises(StaleHandle):
        await owner.read(newer, (0, 100))
    again = await owner.make(100)  # the same word, and perhaps the same memory
    assert again.word_at == region.word_at
    with pytest.raises(StaleHandle):
        await owner.read(newer, (0, 100))
    assert await owner.read(again, (0, 100)) == pattern(100)


async def test_an_epoch_that_ends_in_the_middle(owner: Owner) -> None:
    """The reader gets bytes of both epochs, and is told so."""
    region = await owner.make(64 * MB)
    ending: list[asyncio.Task[Any]] = []

    def at_first(size: int) -> None:
        if not ending:
            ending.append(asyncio.create_task(owner.link.ask("advance", region.id)))

    with pytest.raises(StaleHandle):
        await owner.ucx.read(region, [(0, 64 * MB)], [memoryview(bytearray(64 * MB))], at_first)
    await ending[0]
    await owner.link.ask("remove", region.id)


async def test_memory_that_is_let_go_of_in_the_middle(owner: Owner) -> None:
    """The owner lives, and so does the way to it, for others who read there."""
    region, other = await owner.make(32 * MB), await owner.make(30 * MB)
    ending: list[asyncio.Task[Any]] = []

    def at_first(size: int) -> None:
        if not ending:
            ending.append(asyncio.create_task(owner.link.ask("remove", region.id)))

    async def read() -> None:
        with pytest.raises(StaleHandle):
            await owner.ucx.read(region, [(0, 32 * MB)], [memoryview(bytearray(32 * MB))], at_first)

    _, found = await asyncio.gather(read(), owner.read(other, (0, 30 * MB)))
    assert found == pattern(30 * MB)
    await ending[0]
    assert await owner.read(other, (0, 10)) == pattern(10)
    await owner.link.ask("remove", other.id)


@pytest.mark.parametrize("what", ["read", "write"])
async def test_a_cancelled_one_touches_nothing_any_more(owner: Owner, what: str) -> None:
    size = 64 * MB
    region = await owner.make(size, is_writable=True)
    memory = memoryview(bytearray(b"\xff" * size))
    move = owner.ucx.read if what == "read" else owner.ucx.write
    started = asyncio.Event()
    moving = asyncio.create_task(move(region, [(0, size)], [memory], lambda n: started.set()))
    await started.wait()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    before = bytes(memory)
    milliseconds = await owner.link.ask("remove", region.id)  # waits for what is on its way
    assert bytes(memory) == before
    assert milliseconds < 2000
    assert await owner.read(await owner.make(9), (0, 9)) == pattern(9)


async def test_registering_costs_little_and_leaves_nothing(owner: Owner) -> None:
    await owner.link.ask("churn", 1000)
    fds, resident, _ = await owner.link.ask("facts")
    seconds = await owner.link.ask("churn", 10_000)
    more_fds, more_resident, _ = await owner.link.ask("facts")
    assert more_fds == fds
    assert more_resident - resident < 4 * MB
    assert seconds < 5


async def test_who_waits_takes_no_processor_time(worker: UcxWorker, owner: Owner) -> None:
    await owner.ucx.connect()
    _, _, before = await owner.link.ask("facts")
    mine = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - mine < 0.1
    _, _, after = await owner.link.ask("facts")
    assert after - before < 0.1


async def test_a_wrong_address(worker: UcxWorker, owner: Owner) -> None:
    region = await owner.make(1)
    elsewhere = Ucx(replace(region.endpoint, name="nobody", ucx=b"\0garbage"), worker, owner.link)
    with pytest.raises(TransferBroken, match="nobody"):
        await elsewhere.connect()
    await elsewhere.aclose()


# -- owners that fail; each has a process of its own


async def test_the_owner_is_killed_in_the_middle(worker: UcxWorker) -> None:
    async with an_owner(worker) as owner:
        size = 64 * MB
        region = await owner.make(size, is_writable=True)
        begun: set[str] = set()
        killed_at: list[float] = []

        def begin(what: str) -> None:
            begun.add(what)
            if len(begun) == 2 and not killed_at:
                owner.signal(signal.SIGKILL)
                killed_at.append(time.monotonic())

        memory = memoryview(bytearray(size))
        runs = [(0, size)]
        reads = [owner.ucx.read(region, runs, [memory], lambda n: begin("read")) for _ in range(2)]
        write = owner.ucx.write(region, runs, [memoryview(bytes(size))], lambda n: begin("write"))
        failures = await asyncio.gather(*reads, write, return_exceptions=True)
        assert time.monotonic() - killed_at[0] < 1
        assert [type(failure) for failure in failures] == [TransferBroken] * 3
        assert all("owner" in str(failure) for failure in failures)
        with pytest.raises(TransferBroken):
            await owner.read(region, (0, 1))


async def test_a_stopped_owner(worker: UcxWorker) -> None:
    """Where the kernel reads, nobody notices; over TCP a transfer waits, may be given up, and goes on afterwards."""
    async with an_owner(worker) as owner:
        size = 30 * MB
        region = await owner.make(size, is_writable=True)
        way = await owner.ucx.connect()
        owner.signal(signal.SIGSTOP)
        reading = asyncio.create_task(owner.read(region, (0, size)))
        if way.is_one_sided:
            assert await reading == pattern(size)
        else:
            given_up = asyncio.create_task(owner.read(region, (0, size)))
            mine = time.process_time()
            await asyncio.sleep(0.2)
            assert time.process_time() - mine < 0.1
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        owner.signal(signal.SIGCONT)
        assert await reading == pattern(size)
        await owner.ucx.write(region, [(0, 3)], [memoryview(b"abc")], ignore)
        assert await owner.link.ask("peek", region.id, 0, 3) == b"abc"

        started = asyncio.Event()

        def stop_at_first(size: int) -> None:
            if not started.is_set():
                owner.signal(signal.SIGSTOP)
                started.set()

        writing = asyncio.create_task(owner.ucx.write(region, [(0, size)], [memoryview(bytes(size))], stop_at_first))
        await started.wait()
        writing.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert time.monotonic() - began < 2
        owner.signal(signal.SIGCONT)
        assert await owner.link.ask("remove", region.id) < 2000  # and it does not crash
        assert await owner.read(await owner.make(100), (0, 100)) == pattern(100)


async def test_a_way_that_failed_is_cleared_whatever_the_descriptor_says(worker: UcxWorker) -> None:
    """UCX ends its requests as it is progressed, and makes no descriptor ready for that."""
    async with an_owner(worker) as owner:
        size = 30 * MB
        region = await owner.make(size)
        way = await owner.ucx.connect()
        if way.is_one_sided:
            pytest.skip("the kernel reads at once: nothing is on its way when it fails")
        reading = asyncio.create_task(owner.read(region, (0, size)))
        async with asyncio.timeout(5):
            while not way._outstanding:
                await asyncio.sleep(0)
            worker._loop.remove_reader(worker._fd)
            try:
                worker._endpoint_failed(None, way.handle, CONNECTION_RESET)
                while way in worker._endpoints.values():
                    await asyncio.sleep(0.001)
            finally:
                worker._loop.add_reader(worker._fd, worker._turn)
                worker.soon()
            assert await reading == pattern(size)  # by a way that is made anew


async def test_readers_that_come_and_go_leave_nothing(worker: UcxWorker, owner: Owner) -> None:
    region = await owner.make(MB)

    async def come_and_go() -> None:
        ucx = Ucx(region.endpoint, worker, owner.link)
        into = memoryview(bytearray(MB))
        await ucx.read(region, [(0, MB)], [into], ignore)
        assert into == pattern(MB)
        await ucx.aclose()
        await ucx.aclose()

    await come_and_go()
    fds, _, _ = await owner.link.ask("facts")
    mine = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await come_and_go()
    async with asyncio.timeout(5):
        while (await owner.link.ask("facts"))[0] > fds + 2:
            await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= mine + 2
