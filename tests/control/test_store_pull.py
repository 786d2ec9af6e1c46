"""Copies that come piece by piece: from whoever has them, resumed where one gives out."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from monarch_async.bulk.arena import Arena
from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.region import RemoteRegion
from monarch_async.control.store_memory import Memory
from monarch_async.control.store_pull import PIECE, PullFrom, wait_arrived
from monarch_async.errors import Error, HostLost, ObjectLost, TransferBroken

ID = b"i" * 16
SIZE = 6 * PIECE + 5
FIRST, SECOND = 1, 2


class Sources:
    """Inquiries and data plane of a host that pulls. ``there``: up to where a source has it; None: it does not."""

    def __init__(self) -> None:
        self.there: dict[int, int | None] = {FIRST: SIZE, SECOND: SIZE}
        self.breaks_at: dict[int, int] = {}
        self.read_from: dict[int, list[tuple[int, int]]] = {FIRST: [], SECOND: []}
        self.closed: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self.stuck: asyncio.Event | None = None

    async def ask(self, source: int, *request: Any) -> Any:
        there = self.there[source]
        if there is None:
            raise ObjectLost("x", "not there")
        if request[1] == "where":
            endpoint = Endpoint(b"", source, "", b"", 0, 0, b"")
            region = RemoteRegion(endpoint, 1, 1, 1, ((0, SIZE),), False)
            return {"region": region.pack(), "is_complete": there == SIZE}
        self.asked.append((source, request[3]))
        self.there[source] = min(SIZE, there + PIECE)
        return there

    def post(self, source: int, *request: Any) -> None:
        assert request == ("store", "close", ID)
        self.closed.append(source)

    async def read(self, region: RemoteRegion, runs: Sequence[tuple[int, int]], into: Sequence[memoryview]) -> None:
        ((offset, length),), (view,) = runs, into
        source = region.endpoint.address
        await asyncio.sleep(0)
        if offset >= self.breaks_at.get(source, SIZE):
            if self.stuck is not None:
                self.stuck.set()
                await asyncio.Event().wait()
            raise TransferBroken("x", "cut")
        assert view.nbytes == length <= PIECE
        view[:1] = bytes([source])
        self.read_from[source].append((offset, offset + length))


@pytest.fixture
def sources() -> Sources:
    return Sources()


@pytest.fixture
def memory() -> Memory:
    return Memory(Arena().take(SIZE), Arrivals(SIZE))


def pulling(sources: Sources, memory: Memory) -> PullFrom:
    return PullFrom(ID, SIZE, memory, sources, sources)  # type: ignore[arg-type]


def ignore(agent: int, task: "asyncio.Task[None]") -> None:
    pass


async def test_all_of_it_comes_in_pieces(sources: Sources, memory: Memory) -> None:
    await pulling(sources, memory).run([FIRST, SECOND], ignore)
    assert sorted(sources.read_from[FIRST]) == [(at, min(at + PIECE, SIZE)) for at in range(0, SIZE, PIECE)]
    assert not sources.read_from[SECOND] and sources.closed == [FIRST]


async def test_from_one_that_is_still_getting_it_comes_what_has_arrived(sources: Sources, memory: Memory) -> None:
    sources.there[FIRST] = PIECE
    await pulling(sources, memory).run([FIRST], ignore)
    assert [start for _, start in sources.asked] == list(range(0, SIZE, PIECE))


async def test_where_one_breaks_the_next_gives_what_is_missing(sources: Sources, memory: Memory) -> None:
    sources.breaks_at[FIRST] = 2 * PIECE
    await pulling(sources, memory).run([FIRST, SECOND], ignore)
    assert sorted(sources.read_from[FIRST] + sources.read_from[SECOND])[0] == (0, PIECE)
    assert sources.read_from[FIRST] and not set(sources.read_from[FIRST]) & set(sources.read_from[SECOND])
    assert memory.arrivals is not None and memory.arrivals.is_complete
    assert sources.closed == [FIRST, SECOND]


async def test_one_whose_host_is_lost_is_given_up_at_once(sources: Sources, memory: Memory) -> None:
    sources.breaks_at[FIRST], sources.stuck = 2 * PIECE, asyncio.Event()
    depending: dict[int, asyncio.Task[None]] = {}
    pull = asyncio.create_task(pulling(sources, memory).run([FIRST, SECOND], depending.__setitem__))
    await sources.stuck.wait()
    depending[FIRST].cancel()
    await pull
    assert memory.arrivals is not None and memory.arrivals.is_complete


async def test_where_nobody_has_it_all_reasons_are_told(sources: Sources, memory: Memory) -> None:
    sources.there[FIRST], sources.breaks_at[SECOND] = None, 0
    with pytest.raises(ObjectLost, match=r"not there.*cut"):
        await pulling(sources, memory).run([FIRST, SECOND], ignore)


async def test_one_that_is_stopped_reads_no_more(sources: Sources, memory: Memory) -> None:
    sources.breaks_at[FIRST], sources.stuck = PIECE, asyncio.Event()
    pull = asyncio.create_task(pulling(sources, memory).run([FIRST, SECOND], ignore))
    await sources.stuck.wait()
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert sources.closed == [FIRST] and not sources.read_from[SECOND]


@pytest.mark.parametrize("error", [HostLost("h", "gone"), Error("no")])
async def test_errors_of_agents_are_reasons_too(sources: Sources, memory: Memory, error: Error) -> None:
    async def ask(source: int, *request: Any) -> Any:
        raise error

    sources.ask = ask  # type: ignore[method-assign]
    with pytest.raises(ObjectLost, match=str(error)):
        await pulling(sources, memory).run([FIRST], ignore)


async def test_who_reads_on_is_told_of_what_arrives(memory: Memory) -> None:
    assert memory.arrivals is not None
    waits = asyncio.create_task(wait_arrived(memory, 100))
    memory.arrivals.add(0, 100)
    memory.tell()
    await asyncio.sleep(0)
    assert not waits.done()
    memory.arrivals.add(100, 200)
    memory.tell()
    assert await waits == 200
    waits = asyncio.create_task(wait_arrived(memory, 200))
    await asyncio.sleep(0)
    memory.is_gone = True
    memory.tell()
    with pytest.raises(ObjectLost):
        await waits
