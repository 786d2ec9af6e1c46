"""Real agents that are started and ended while a program runs."""

import asyncio
import os

import pytest

import monarch_async as ma

pytestmark = pytest.mark.slow  # hosts that are started and ended in every test


class Member(ma.Actor):
    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def ask(self, other: "Member") -> int:
        return await other.pid.call_one()

    @ma.endpoint
    async def spread(self) -> list[str]:
        """Spawn on every host there is."""
        hosts = await ma.cluster().fetch_hosts()
        procs = await hosts.spawn_procs(name="spread")
        members = await procs.spawn("members", Member)
        await members.pid.call()
        await procs.stop()
        return [host.name for host in hosts.hosts]


async def test_local_hosts_grow_and_shrink() -> None:
    async with ma.local_hosts() as hosts:
        cluster = ma.cluster()
        first = await (await hosts.spawn_procs()).spawn("members", Member)
        more = await cluster.grow(1)
        assert [host.name for host in cluster.hosts.hosts] == ["host0", "host1"]
        agent = (await more.status()).hosts[0].pid
        procs = await more.spawn_procs()
        second = await procs.spawn("members", Member)
        assert await first.ask.call_one(second) == await second.pid.call_one()
        assert await second.ask.call_one(first) == await first.pid.call_one()
        assert sorted(await first.spread.call_one()) == ["host0", "host1"]
        assert await second.spread.call_one() == ["host1", "host0"]  # its own first
        drained = asyncio.create_task(cluster.drain(more))
        await asyncio.sleep(0.1)
        assert not drained.done()
        await procs.stop()
        async with asyncio.timeout(10):
            await drained
        assert not os.path.exists(f"/proc/{agent}")  # it was given back
        assert [host.name for host in cluster.hosts.hosts] == ["host0"]
        assert await first.spread.call_one() == ["host0"]
