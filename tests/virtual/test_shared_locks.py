"""Locks and queues while procs are killed, calls cancelled, links cut: who holds what stays true everywhere.

What a killed proc does between its death and the agents' hearing of it nobody can undo; therefore the tokens: what
stands behind a lock takes no token older than the newest it has seen.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
import simulation
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma


class Resource:
    """Stands behind a lock; counts who is inside."""

    def __init__(self) -> None:
        self.inside: dict[int, int] = {}  # token: address
        self.newest = 0
        self.entered = 0

    def enter(self, simulation: Simulation, token: int, address: int) -> None:
        for other in self.inside.values():
            proc = simulation.procs.get(other)
            assert proc is not None and proc.is_over, "two are inside, and the first lives"
        assert token > self.newest, "a token that is out of date"
        self.newest = token
        self.inside[token] = address
        self.entered += 1

    def leave(self, token: int) -> None:
        self.inside.pop(token, None)


class Ledger:
    """What was put, and what became of it."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.got: Counter[str] = Counter()
        self.last: dict[tuple[str, int], int] = {}


simulated: dict[str, Any] = {}


class Worker(ma.Actor):
    """Uses what it is given until it is told to stop, or dies."""

    @ma.endpoint
    async def lock(self, lock: ma.Lock, times: int, pause: float) -> None:
        address = ma.context().proc.address
        resource, here = simulated["resource"], simulated["simulation"]
        for _ in range(times):
            async with lock as token:
                resource.enter(here, token, address)
                try:
                    await asyncio.sleep(pause)
                finally:
                    if not here.procs[address].is_over:
                        resource.leave(token)

    @ma.endpoint
    async def put(self, queue: ma.Queue[Any], name: str, count: int, pause: float) -> None:
        ledger: Ledger = simulated["ledger"]
        for number in range(count):
            await queue.put((name, number, bytes(3000)))
            ledger.acknowledged.add(f"{name}:{number}")
            await asyncio.sleep(pause)

    @ma.endpoint
    async def get(self, queue: ma.Queue[Any]) -> None:
        await take_all(queue, ma.context().proc.address)


async def take_all(queue: ma.Queue[Any], address: int) -> None:
    ledger: Ledger = simulated["ledger"]
    async for name, number, _ in queue:
        ledger.got[f"{name}:{number}"] += 1
        assert ledger.last.get((name, address), -1) < number, "out of order"
        ledger.last[name, address] = number
        await asyncio.sleep(0.01)


def assert_nothing_in_use(here: Simulation) -> None:
    for agent in here.agents:
        coordination = agent.coordination._coordination
        assert not coordination._live, coordination.facts()
        assert not coordination._of and not coordination._users and not coordination._counts
        known = set(agent.coordination._parties)
        dead = {address for address, proc in here.procs.items() if proc.is_over}
        assert not known & dead, "one that has ended is still a party"
        assert not agent.coordination._kept and not agent.coordination._tasks


async def locks(seed: int) -> None:
    dice = random.Random(seed)
    async with cluster(2, latency=0.002, seed=seed) as here, ma.supervise(ma.ignore):
        simulated.update(simulation=here, resource=Resource())
        procs = await here.hosts.spawn_procs({"p": 3})
        workers = await procs.spawn("workers", Worker)
        lock = ma.Lock()
        calls = [workers.at(rank).lock.call_one(lock, 20, 0.02) for rank in range(6)]
        waits = [asyncio.create_task(one_turn(lock)) for _ in range(10)]
        for _ in range(6):
            await asyncio.sleep(dice.random() * 0.1)
            match dice.choice(["kill", "cancel", "cut", "give up"]):
                case "kill":
                    rank = dice.randrange(6)
                    await procs.slice(hosts=rank // 3, p=rank % 3).kill()
                case "cancel":
                    calls[dice.randrange(6)].cancel()
                case "cut":
                    here.net.cut(f"agent{dice.randrange(2)}")
                case "give up":
                    waits[dice.randrange(10)].cancel()
        await asyncio.gather(*calls, *waits, return_exceptions=True)
        async with asyncio.timeout(5), lock as token:
            simulated["resource"].enter(here, token, 0)
        for call in calls:
            if not call.cancelled() and call.exception() is not None:
                assert isinstance(call.exception(), ma.ProcDied)
        await here.settle()
        assert_nothing_in_use(here)
        assert simulated["resource"].entered > 10


async def one_turn(lock: ma.Lock) -> None:
    """In the client."""
    async with lock as token:
        simulated["resource"].enter(simulated["simulation"], token, 0)
        try:
            await asyncio.sleep(0.01)
        finally:
            simulated["resource"].leave(token)


async def queues(seed: int) -> None:
    dice = random.Random(seed)
    async with cluster(2, latency=0.002, seed=seed) as here, ma.supervise(ma.ignore):
        simulated.update(simulation=here, ledger=Ledger())
        ledger: Ledger = simulated["ledger"]
        procs = await here.hosts.spawn_procs({"p": 4})
        workers = await procs.spawn("workers", Worker)
        queue: ma.Queue[Any] = ma.Queue(maxsize=5)
        puts = [workers.at(rank).put.call_one(queue, f"w{rank}", 30, 0.01) for rank in (0, 1, 4, 5)]
        gets = [workers.at(rank).get.call_one(queue) for rank in (2, 3, 6, 7)]
        killed: set[int] = set()
        for _ in range(5):
            await asyncio.sleep(dice.random() * 0.15)
            match dice.choice(["kill", "cancel", "cut"]):
                case "kill":
                    rank = dice.randrange(8)
                    killed.add(rank)
                    await procs.slice(hosts=rank // 4, p=rank % 4).kill()
                case "cancel":
                    dice.choice([*puts, *gets]).cancel()
                case "cut":
                    here.net.cut(f"agent{dice.randrange(2)}")
        mine = asyncio.create_task(take_all(queue, 0))
        await asyncio.gather(*puts, return_exceptions=True)
        await queue.close()
        async with asyncio.timeout(20):
            await asyncio.gather(mine, *gets, return_exceptions=True)
        assert not mine.cancelled() and mine.exception() is None
        assert max(ledger.got.values()) == 1, "an item came twice"
        missing = ledger.acknowledged - set(ledger.got)
        assert len(missing) <= len(killed & {2, 3, 6, 7}), "more were lost than were on their way to who was killed"
        await here.settle()
        assert_nothing_in_use(here)
        assert not any(agent.store.facts()["objects"] for agent in here.agents)


class Holder(ma.Actor):
    @ma.endpoint
    async def acquire(self, lock: ma.Lock) -> int:
        return await lock.acquire()


def test_a_host_that_is_frozen_for_too_long() -> None:
    """What was held there is free when the window has passed; what had its home there is lost, and may be used anew."""

    async def main() -> None:
        async with cluster(2) as here, ma.supervise(ma.ignore):
            far = await (await here.hosts.slice(hosts=1).spawn_procs()).spawn("far", Holder)
            kept_here = ma.Lock(home=here.hosts.slice(hosts=0))
            kept_there = ma.Lock("there", home=here.hosts.slice(hosts=1))
            before, token = await far.acquire.call_one(kept_here), 0
            with pytest.raises(ma.HostLost):
                async with kept_there as token:
                    waits = asyncio.create_task(kept_there.acquire())
                    here.freeze(1)
                    began = asyncio.get_running_loop().time()
                    async with kept_here as later:
                        assert later > before
                        with pytest.raises(ma.NotHolder):
                            await kept_here.check(before)
                    waited = asyncio.get_running_loop().time() - began
                    assert CONFIG.resume_window / 2 < waited < 2 * CONFIG.resume_window
                    with pytest.raises(ma.HostLost):
                        await waits
            here.thaw(1)
            await here.settle()
            async with kept_there as anew:
                assert anew > token > 0
            with pytest.raises(ma.NotHolder):
                await kept_there.check(token)
            assert_nothing_in_use(here)

    simulation.run(main(), 0, True)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 32))
def test_locks(seed: int) -> None:
    simulation.run(locks(seed), seed)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 32))
def test_queues(seed: int) -> None:
    simulation.run(queues(seed), seed)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 32))
def test_locks_for_long(seed: int) -> None:
    simulation.run(locks(seed), seed)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 32))
def test_queues_for_long(seed: int) -> None:
    simulation.run(queues(seed), seed)
