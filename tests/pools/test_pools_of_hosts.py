"""Pools over hosts that come and go."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from pool_actors import Engine

import monarch_async as ma


@pytest.mark.slow
async def test_it_asks_for_hosts_where_there_is_no_room() -> None:
    async with ma.local_hosts(resources=ma.Resources(cpus=1)):
        asked = 0

        async def grow() -> None:
            nonlocal asked
            asked += 1
            await ma.cluster().grow(1, ma.Resources(cpus=2))

        async with ma.ActorPool(Engine, min=3, max=3, grow=grow) as pool:
            assert len({await replica.pid.call_one() for replica in pool.replicas}) == 3
        assert asked == 1, "one host has room for both"
        with pytest.raises(ma.Unschedulable):
            async with ma.ActorPool(Engine, bundle=ma.Bundle(gpus=1), grow=grow):
                raise AssertionError
        assert asked == 2, "what fits nowhere does not go on growing"


@pytest.mark.slow
async def test_a_source_that_fails_leaves_what_there_is() -> None:
    async with ma.local_hosts(resources=ma.Resources(cpus=1)):

        async def grow() -> None:
            raise OSError("the job is full")

        with pytest.raises(ma.Unschedulable):
            async with ma.ActorPool(Engine, bundle=ma.Bundle(gpus=1), grow=grow):
                raise AssertionError


@pytest.mark.slow
async def test_replicas_of_a_lost_host_are_replaced(tmp_path: Path) -> None:
    async with ma.local_hosts(2, resources=ma.Resources(cpus=1)) as hosts:
        async with ma.ActorPool(Engine, min=1, max=1, failures=1) as pool:
            (replica,) = (await pool.status()).replicas
            pids = {host.name: host.pid for host in (await hosts.status()).hosts}
            first = await pool.pid.call_one()
            lost = asyncio.ensure_future(pool.hold.call_one(str(tmp_path), "held"))
            async with asyncio.timeout(10):
                while not (tmp_path / "held").exists():
                    await asyncio.sleep(0.005)
            os.kill(pids[replica.host], signal.SIGKILL)
            with pytest.raises(ma.HostLost):
                await lost
            async with asyncio.timeout(20):
                while not pool.replicas or (await pool.status()).replicas[-1].host == replica.host:
                    await asyncio.sleep(0.01)
                assert await pool.pid.call_one() != first
