"""Every adverb on every shape of mesh, with real processes: who is called, what comes back, in what order."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.mesh.endpoint import Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Worker(ma.Actor):
    """Records what it was called with, and holds calls until told."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.seen: list[object] = []
        self.gate = asyncio.Event()

    @ma.endpoint
    async def add(self, x: int, *, scale: int = 1) -> int:
        return self.base + ma.context().rank * 100 + x * scale

    @ma.endpoint
    async def record(self, value: object) -> None:
        self.seen.append(value if not isinstance(value, bytes) else len(value))

    @ma.endpoint
    async def record_and_count(self, value: object) -> int:
        self.seen.append(value if not isinstance(value, bytes) else len(value))
        count = len(self.seen)
        await asyncio.sleep(0)
        return count

    @ma.endpoint
    async def count(self, up_to: int) -> AsyncIterator[int]:
        self.seen.append("count")
        for index in range(up_to):
            yield index

    @ma.endpoint
    async def recorded(self) -> list[object]:
        seen, self.seen = self.seen, []
        return seen

    @ma.endpoint
    async def wait(self) -> int:
        await self.gate.wait()
        return ma.context().rank

    @ma.endpoint
    async def open(self) -> None:
        self.gate.set()
        self.gate = asyncio.Event()

    @ma.endpoint
    async def finish_in_turn(self, last: int) -> int:
        await asyncio.sleep(0.03 * (last - ma.context().rank))
        return ma.context().rank

    @ma.endpoint
    async def boom(self, rank: int) -> int:
        if ma.context().rank == rank:
            raise ValueError(f"boom at {rank}")
        return ma.context().rank


SHAPES = [{}, {"gpus": 1}, {"gpus": 3}, {"rows": 2, "columns": 2}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts(n=2) as hosts:
        yield hosts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four(hosts: ma.HostMesh) -> AsyncIterator[Worker]:
    procs = await hosts.spawn_procs({"gpus": 2}, name="four")
    yield await procs.spawn("workers", Worker)
    await procs.stop()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("over", ["one host", "two hosts"])
async def test_every_adverb_on_every_shape(hosts: ma.HostMesh, shape: dict[str, int], over: str) -> None:
    within = hosts.slice(hosts=0) if over == "one host" else hosts
    procs = within.spawn_procs(shape)
    workers = procs.spawn("workers", Worker, base=1000)
    extent = ma.Extent.of({**within.extent, **shape})
    assert workers.extent == extent
    expected = [1000 + rank * 100 + 7 for rank in range(extent.size)]

    added = await workers.add.call(7)
    assert added.extent == extent
    assert list(added) == expected
    assert [point.rank for point, _ in added.items()] == list(range(extent.size))
    assert {point.rank: value async for point, value in workers.add.stream(7)} == dict(enumerate(expected))
    assert await workers.add.choose(7) in expected
    assert await workers.at(-1).add.call_one(7) == expected[-1]
    assert await workers.add.call_one(7) == expected[0] if extent.size == 1 else True
    await workers.record.broadcast("hello")
    assert list(await workers.recorded.call()) == [["hello"]] * extent.size
    items = [(point.rank, item) async for point, item in workers.count.stream(3)]
    for rank in range(extent.size):
        assert [item for at, item in items if at == rank] == [0, 1, 2]
    assert [item async for item in workers.at(0).count.stream_one(3)] == [0, 1, 2]
    assert [item async for item in workers.count.choose(3)] == [0, 1, 2]
    await procs.stop()


async def test_keyword_arguments_and_defaults(four: Worker) -> None:
    assert await four.at(0).add.call_one(x=2, scale=5) == 10
    assert await four.at(1).add.call_one(2) == 102


async def test_a_stream_of_results_comes_as_they_finish(four: Worker) -> None:
    order = [rank async for _, rank in four.finish_in_turn.stream(3)]
    assert order == [3, 2, 1, 0]


async def test_choose_avoids_the_busy_members(four: Worker) -> None:
    busy = [four.at(rank).wait.call_one() for rank in (0, 1, 3)]
    chosen = [await four.add.choose(0) for _ in range(5)]
    assert chosen == [200] * 5
    await four.open.call()
    assert await asyncio.gather(*busy) == [0, 1, 3]


async def test_choose_spreads_evenly_over_idle_and_equally_busy_members(four: Worker) -> None:
    waiting = [four.wait.choose() for _ in range(8)]
    await four.open.call()
    assert sorted(await asyncio.gather(*waiting)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {await four.add.choose(0) for _ in range(8)} == {0, 100, 200, 300}


async def test_a_call_is_sent_when_it_is_made(four: Worker) -> None:
    first = four.at(2)
    future = first.record.call_one("eager")
    assert isinstance(future, asyncio.Future)
    other = await first.recorded.call_one()  # awaited before the first one
    assert other == ["eager"]
    assert future.done()
    await future


async def test_calls_are_futures_for_gather_wait_and_as_completed(four: Worker) -> None:
    assert await asyncio.gather(*[four.at(rank).add.call_one(rank) for rank in range(4)]) == [0, 101, 202, 303]
    done, pending = await asyncio.wait([four.add.call(1), four.at(0).add.call_one(1)])
    assert len(done) == 2
    assert not pending
    calls = [four.at(rank).finish_in_turn.call_one(3) for rank in range(4)]
    finished = [await future for future in asyncio.as_completed(calls)]
    assert finished == [3, 2, 1, 0]
    slow, quick = four.at(0).wait.call_one(), four.at(1).add.call_one(0)
    done, pending = await asyncio.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
    assert done == {quick}
    await four.open.call()
    assert await slow == 0


async def test_a_mesh_is_used_before_it_is_up(hosts: ma.HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 1})
    workers = procs.spawn("early", Worker, base=5)
    calls = [workers.record_and_count.call(index) for index in range(10)]
    streamed = workers.at(0).count.stream_one(2)
    assert [list(counts) for counts in await asyncio.gather(*calls)] == [[n, n] for n in range(1, 11)]
    assert [item async for item in streamed] == [0, 1]
    await workers
    await procs
    await procs.stop()


@pytest.mark.parametrize("over", ["one member", "all members"])
async def test_calls_arrive_in_the_order_they_were_made_whatever_the_adverb(four: Worker, over: str) -> None:
    """Promise 1; with messages of every size, which travel in three different ways."""
    mesh: Worker = four.at(3) if over == "one member" else four
    await mesh.recorded.call()
    sizes = [1, 70_000, 300_000, 3, 2_000_000, 4, 5, 600_000]
    expected: list[object] = []
    pending: list[object] = []
    for index in range(40):
        size = sizes[index % len(sizes)]
        value = bytes(size) if size > 10 else index
        expected.append(size if size > 10 else index)
        match index % 5:
            case 0:
                pending.append(mesh.record.call(value))
            case 1:
                pending.append(mesh.record.broadcast(value))
            case 2:
                pending.append(mesh.record_and_count.call(value))
            case 3:
                pending.append(mesh.record.stream(value))
            case 4:
                pending.append(mesh.record_and_count.broadcast(value))
        if index % 9 == 0 and over == "one member":
            pending.append(mesh.count.stream_one(1))
            expected.append("count")
    for seen in await mesh.recorded.call():
        assert seen == expected
    for one in pending:
        if isinstance(one, asyncio.Future):
            await one
        else:
            assert isinstance(one, ma.Stream)
            async for _ in one:
                pass


async def test_all_errors_are_gathered_or_the_first_one_is_raised(four: Worker) -> None:
    with pytest.raises(ma.MeshError) as caught:
        await four.boom.call(1)
    assert list(caught.value.by_rank) == [1]
    assert isinstance(caught.value.by_rank[1], ValueError)
    assert caught.value.results == {0: 0, 2: 2, 3: 3}
    first = four.boom
    assert isinstance(first, Endpoint)
    with pytest.raises(ValueError, match="boom at 2") as one:
        await first.options(first_error=True).call(2)
    assert isinstance(one.value, ma.RemoteError)
    assert one.value.rank == 2
    with pytest.raises(ValueError, match="boom at 0"):
        await four.at(0).boom.call(0)  # a mesh of one has one error
    with pytest.raises(ValueError, match="boom at 3"):
        async for _ in four.boom.stream(3):
            pass


async def test_an_endpoint_says_what_it_is(four: Worker) -> None:
    assert isinstance(four, ActorMesh)
    assert repr(four.add) == "<endpoint workers.add(x, *, scale=...) of hosts=2 gpus=2>"
    assert repr(four) == "<ActorMesh workers hosts=2 gpus=2>"
