"""An argument for several procs of another host crosses the network once; who dies or gives up leaves nothing of it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import pytest
from agents import TOKEN, Agent, running_agent

import monarch_async as ma
from monarch_async.runtime.router import active_router
from monarch_async.testing import FaultProxy

pytestmark = pytest.mark.slow  # hosts of their own for every test

SIZE = 8 << 20


class Taker(ma.Actor):
    def __init__(self) -> None:
        self.kept: list[bytes | bytearray] = []

    @ma.endpoint
    async def total(self, data: bytes) -> tuple[int, int]:
        return len(data), data[-1]

    @ma.endpoint
    async def keep(self, data: bytearray) -> int:
        self.kept.append(data)
        data[0] = os.getpid() % 251
        return len(data)

    @ma.endpoint
    async def kept_starts(self) -> tuple[int, int]:
        return self.kept[0][0], os.getpid() % 251

    @ma.endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @ma.endpoint
    async def spread(self, others: ma.ActorMesh, size: int) -> list[int]:
        return [length for length, _ in await others.total.call(b"\x01" * size)]

    @ma.endpoint
    async def bulk_bytes(self) -> int:
        """What this proc itself has moved over TCP."""
        return sum(route.nbytes for route in active_router().plane.routes())


@contextlib.asynccontextmanager
async def far_away() -> AsyncIterator[tuple[ma.HostMesh, Agent, Agent]]:
    """Two hosts that are reached over TCP, and move tensors over TCP only."""
    config = ma.Config(transports="tcp")
    async with running_agent(name="a", config=config) as a, running_agent(name="b", config=config) as b:
        async with ma.attach(a.url, b.url, token=TOKEN, config=config) as hosts:
            yield hosts, a, b


async def test_once_per_host() -> None:
    async with far_away() as (hosts, _, _):
        takers = await (await hosts.spawn_procs({"gpus": 4})).spawn("takers", Taker)
        sent = active_router().plane
        for value in (1, 2):
            assert [tuple(r) for r in await takers.total.call(bytes([value]) * SIZE)] == [(SIZE, value)] * 8
        assert sent.is_listening
        assert list(await takers.bulk_bytes.call()) == [0] * 8  # the agents fetched it
        assert await takers.at(0).spread.call_one(takers, SIZE) == [SIZE] * 8
        assert list(await takers.keep.call(bytearray(SIZE))) == [SIZE] * 8
        starts = await takers.kept_starts.call()
        assert all(found == own for found, own in starts)
        assert len(sent.regions) == 0


async def test_a_single_one_fetches_it_itself() -> None:
    async with far_away() as (hosts, _, _):
        takers = await (await hosts.spawn_procs()).spawn("takers", Taker)
        assert [tuple(r) for r in await takers.total.call(b"\x07" * SIZE)] == [(SIZE, 7)] * 2
        assert all(moved >= SIZE for moved in await takers.bulk_bytes.call())


async def test_who_is_dead_is_not_waited_for() -> None:
    async with far_away() as (hosts, _, _):
        async with ma.supervise(ma.ignore):
            takers = await (await hosts.spawn_procs({"gpus": 3})).spawn("takers", Taker)
            assert list(await takers.keep.call(bytearray(SIZE))) == [SIZE] * 6
            with pytest.raises(ma.ProcDied):
                await takers.at(1).die.call_one()
            with pytest.raises(ma.ProcDied):
                await takers.total.call(b"\x01" * SIZE)
            assert [tuple(r) for r in await takers.slice(gpus=2).total.call(b"\x02" * SIZE)] == [(SIZE, 2)] * 2


async def test_a_sender_that_cannot_be_dialled_sends_chunks() -> None:
    """Its data plane listens where others do not get to: what it offers is refused, and comes through the agents."""
    config = ma.Config(transports="tcp")
    async with running_agent(name="a", config=config) as a:
        async with FaultProxy(a.url) as proxy, ma.attach(proxy.url, token=TOKEN, config=config) as hosts:
            takers = await (await hosts.spawn_procs({"gpus": 3})).spawn("takers", Taker)
            plane = active_router().plane
            plane.regions.find = lambda *_: (_ for _ in ()).throw(ma.TransferBroken("a test", "planted"))  # type: ignore
            async with asyncio.timeout(20):
                assert [tuple(r) for r in await takers.total.call(b"\x04" * SIZE)] == [(SIZE, 4)] * 3
                assert [tuple(r) for r in await takers.total.call(b"\x05" * SIZE)] == [(SIZE, 5)] * 3
