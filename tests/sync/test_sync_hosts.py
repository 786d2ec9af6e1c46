"""Locks, queues and the like over two hosts, and what becomes of them when processes and hosts are lost."""

import asyncio
import os
import signal
from typing import Any

import numpy as np
import pytest
from sharers import Sharer

import monarch_async as ma

pytestmark = pytest.mark.slow  # several hosts for every test; the same in virtual time runs always


async def spawn(hosts: ma.HostMesh, name: str = "sharers", count: int = 2) -> Any:
    return await (await hosts.spawn_procs({"p": count}, name=name)).spawn(name, Sharer)


async def wait_waiting(count: int) -> None:
    """Wait until so many wait for anything."""
    async with asyncio.timeout(5):
        while sum(len(row.waiting) for row in (await ma.cluster().locks()).rows) < count:
            pass


async def end_host(hosts: ma.HostMesh, index: int) -> None:
    os.kill((await hosts.status()).hosts[index].pid, signal.SIGKILL)


async def test_over_two_hosts() -> None:
    """The home hears of deaths on another host: of holders, of who waits and was never answered, of a former life."""
    async with ma.local_hosts(2) as hosts, ma.supervise(ma.ignore):
        near = await spawn(hosts.slice(hosts=0))
        procs = await hosts.slice(hosts=1).spawn_procs({"p": 2})
        far = await procs.spawn("far", Sharer)
        counter = (await spawn(hosts.slice(hosts=1), "counter", 1)).slice(p=0)
        lock = ma.Lock(home=hosts.slice(hosts=0))
        await asyncio.gather(near.add.call(lock, counter, 5), far.add.call(lock, counter, 5))
        count, tokens = await counter.written.call_one()
        assert count == 20 and tokens == sorted(set(tokens))

        lock = ma.Lock(home=hosts.slice(hosts=0))  # nobody of far is known to its home by this one yet
        await far.slice(p=0).acquire.call_one(lock)
        never_answered = far.slice(p=1).acquire.call_one(lock)
        await wait_waiting(1)
        waits = near.slice(p=0).acquire.call_one(lock)
        await wait_waiting(2)
        await procs.slice(p=1).kill()
        with pytest.raises(ma.ProcDied):
            await never_answered
        await procs.restart(0)
        async with asyncio.timeout(2):
            token = await waits
        await near.slice(p=0).release.call_one(lock, token)
        async with asyncio.timeout(2):
            await far.slice(p=0).release.call_one(lock, await far.slice(p=0).acquire.call_one(lock))
        assert not (await ma.cluster().locks()).rows


async def test_a_home_tells_of_parties_on_other_hosts() -> None:
    async with ma.local_hosts(2) as hosts, ma.supervise(ma.ignore):
        near = await spawn(hosts.slice(hosts=0))
        procs = await hosts.slice(hosts=1).spawn_procs(name="far")
        far = await procs.spawn("far", Sharer)
        barrier = ma.Barrier(3)
        indexes = await asyncio.gather(near.wait.call(barrier), far.wait.call_one(barrier))
        assert sorted([*indexes[0], indexes[1]]) == [0, 1, 2]
        waits = near.slice(p=0).wait.call_one(barrier)
        await wait_waiting(1)
        await procs.kill()
        with pytest.raises(ma.BarrierBroken, match=r"far.wait is gone: proc far\[0\] on host1 died"):
            await waits
        await barrier.reset()
        assert sorted(await asyncio.gather(*[near.slice(p=p).wait.call_one(barrier) for p in (0, 1)], barrier.wait()))


async def test_a_host_that_is_lost_holds_nothing() -> None:
    async with ma.local_hosts(2) as hosts, ma.supervise(ma.ignore):
        far = await spawn(hosts.slice(hosts=1))
        lock, semaphore, queue = ma.Lock(), ma.Semaphore(2), ma.Queue[Any](producers=1)
        await far.slice(p=0).acquire.call_one(lock)
        await far.slice(p=1).acquire.call_one(semaphore)
        produces = far.slice(p=1).produce_for_ever.call_one(queue, "first")
        assert await queue.get() == "first"
        await end_host(hosts, 1)
        async with asyncio.timeout(5):
            async with lock, semaphore.taking(2):
                pass
            with pytest.raises(ma.HostLost, match="host host1 lost"):
                await queue.get()
        with pytest.raises(ma.HostLost):
            await produces


async def test_a_home_that_is_lost_is_lost() -> None:
    """For who waits, for who holds, and for ever: nothing is made anew elsewhere."""
    async with ma.local_hosts(2) as hosts, ma.supervise(ma.ignore):
        far = await spawn(hosts.slice(hosts=1))
        lock, entered, leave = ma.Lock("x"), ma.Event(home=hosts.slice(hosts=1)), ma.Event(home=hosts.slice(hosts=1))
        holds = far.slice(p=0).hold.call_one(lock, entered, leave)
        await entered.wait()
        waits = far.slice(p=1).acquire.call_one(lock)
        here = asyncio.create_task(lock.acquire())
        await wait_waiting(2)
        await end_host(hosts, 0)
        for lost in (waits, here):
            with pytest.raises(ma.HostLost):
                await lost
        await leave.set()
        with pytest.raises(ma.HostLost):
            await holds
        for attempt in (lock.acquire, lock.holder):
            with pytest.raises(ma.HostLost):
                await attempt()
        with pytest.raises(ma.HostLost):
            await far.slice(p=1).acquire.call_one(ma.Lock("x"))
        async with asyncio.timeout(5), ma.Lock(), ma.Lock("x", home=hosts.slice(hosts=1)):
            pass


async def test_large_items_over_two_hosts() -> None:
    """They go from where they were put to who takes them; lost with the host they were put on, and that is said."""
    async with ma.local_hosts(2) as hosts, ma.supervise(ma.ignore):
        near, far = await spawn(hosts.slice(hosts=0), "near"), await spawn(hosts.slice(hosts=1), "far")
        queue: ma.Queue[Any] = ma.Queue(maxsize=4)
        puts = far.slice(p=0).put_arrays.call_one(queue, 6, 50_000)
        sums = [await near.slice(p=p % 2).get_and_sum.call_one(queue) for p in range(3)]
        sums += [await far.slice(p=1).get_and_sum.call_one(queue) for _ in range(3)]
        assert sums == [50_000.0 * number for number in range(6)]
        await puts
        await far.slice(p=0).put_arrays.call_one(queue, 1, 50_000)
        await queue.put(np.full(50_000, 8))
        async with asyncio.timeout(5):
            while (await hosts.slice(hosts=1).status()).hosts[0].store.objects != 1:  # what was taken is gone
                pass
        await end_host(hosts, 1)
        async with asyncio.timeout(5):
            with pytest.raises(ma.ObjectLost):
                await queue.get()
            assert (await queue.get())[0] == 8
            while (await hosts.slice(hosts=0).status()).hosts[0].store.objects:
                pass
