"""Hosts with networks of their own: tensors between machines, over links that can be cut.

Each host agent runs in a network namespace (see `machines`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import machines
import pytest
import torch
from machines import Network, needs_machines

import monarch_async as ma

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), needs_machines]

CONFIG = ma.Config(resume_window=20.0, heartbeat=0.5, stop_grace=0.5)
MB = 1 << 20


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with machines.network(2) as net:
        yield net


@contextlib.asynccontextmanager
async def cluster(network: Network, config: ma.Config) -> AsyncIterator[ma.HostMesh]:
    for machine in network:
        machine.config = config
    async with machines.running_agents(network), network.attached() as hosts:
        yield hosts


class Owner(ma.Actor):
    @ma.endpoint
    async def register(self, size: int) -> ma.Handle:
        self.memory = torch.arange(size, dtype=torch.int32)
        return await ma.register(self.memory)

    @ma.endpoint
    async def total(self, data: torch.Tensor) -> int:
        return int(data.to(torch.int64).sum())

    @ma.endpoint
    async def own_total(self) -> int:
        return int(self.memory.to(torch.int64).sum())

    @ma.endpoint
    async def fetch(self, handle: ma.Handle) -> int:
        return int((await handle.fetch()).to(torch.int64).sum())

    @ma.endpoint
    async def write(self, handle: ma.Handle, value: int) -> None:
        await handle.write(torch.full(handle.shape, value, dtype=torch.int32))

    @ma.endpoint
    async def total_of(self, ref: ma.Ref) -> int:
        return int((await ref).to(torch.int64).sum())

    @ma.endpoint
    async def ways(self) -> list[str]:
        return sorted({way.transport for way in ma.transports()})


def total_of(size: int) -> int:
    return size * (size - 1) // 2


@pytest.mark.parametrize("transports", ["local,cma,memfd,tcp", "memfd", "tcp"])
async def test_from_every_host_to_every_other(network: Network, transports: str) -> None:
    size = MB
    async with cluster(network, ma.Config(**{**vars_of(CONFIG), "transports": transports})) as hosts:
        owners = await (await hosts.spawn_procs({"n": 2})).spawn("owners", Owner)
        data = torch.arange(size, dtype=torch.int32)
        assert list(await owners.total.call(data)) == [total_of(size)] * 4
        here, there = owners.at(0), owners.at(2)
        handle = await there.register.call_one(size)
        assert torch.equal(await handle.fetch(), data)
        assert await here.fetch.call_one(handle) == total_of(size)
        await here.write.call_one(handle, 3)
        assert await there.own_total.call_one() == 3 * size
        mine = await ma.register(data)
        assert list(await owners.fetch.call(mine)) == [total_of(size)] * 4
        ref = await ma.put(data)
        assert list(await owners.total_of.call(ref)) == [total_of(size)] * 4
        if transports == "tcp":
            assert await here.ways.call_one() == ["tcp"]
        await mine.aclose()


def vars_of(config: ma.Config) -> dict[str, object]:
    return {name: getattr(config, name) for name in type(config).__slots__}


async def test_a_link_that_is_cut_for_a_while_is_not_noticed(network: Network) -> None:
    size = 64 * MB
    config = ma.Config(**{**vars_of(CONFIG), "transports": "tcp", "bulk_retries": 15.0})
    async with cluster(network, config) as hosts:
        owners = await (await hosts.spawn_procs()).spawn("owners", Owner)
        handle = await owners.at(1).register.call_one(size)
        out = torch.zeros(size, dtype=torch.int32)
        fetching = asyncio.ensure_future(handle.fetch(out=out))
        while not int(out[MB]) and not fetching.done():
            await asyncio.sleep(0)  # until some of it is here
        network[1].cut()
        cut_in_time = not fetching.done()
        await asyncio.sleep(1.0)  # how long the cut lasts
        network[1].mend()
        async with asyncio.timeout(40):
            await fetching
        assert torch.equal(out, torch.arange(size, dtype=torch.int32))
        assert cut_in_time


async def test_a_host_that_stays_away_ends_what_waits_for_it(network: Network) -> None:
    size = 64 * MB
    config = ma.Config(**{**vars_of(CONFIG), "transports": "tcp", "bulk_retries": 1.0, "resume_window": 2.0})
    async with cluster(network, config) as hosts:
        async with ma.supervise(ma.ignore):
            owners = await (await hosts.spawn_procs()).spawn("owners", Owner)
            handle = await owners.at(1).register.call_one(size)
            out = torch.zeros(size, dtype=torch.int32)
            fetching = asyncio.ensure_future(handle.fetch(out=out))
            while not int(out[MB]) and not fetching.done():
                await asyncio.sleep(0)
            network[1].cut()
            try:
                async with asyncio.timeout(40):
                    with pytest.raises((ma.HostLost, ma.TransferBroken)):
                        await fetching
                with pytest.raises(ma.HostLost):
                    await owners.at(1).own_total.call_one()
            finally:
                network[1].mend()
