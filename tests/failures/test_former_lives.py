"""Procs that end with something on its way: nobody waits for the rest of it, is hurt by it, or takes it for another's.

A proc that is restarted has the address of the one before.
"""

import asyncio
import os
import signal

import pytest

import monarch_async as ma
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.slow  # hosts of their own for every test


class Slow(ma.Actor):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}

    @ma.endpoint
    async def answer(self, tag: str) -> str:
        await self.gates.setdefault(tag, asyncio.Event()).wait()
        return tag

    @ma.endpoint
    async def has_been_asked(self, tag: str) -> bool:
        return tag in self.gates

    @ma.endpoint
    async def let_go(self, tag: str) -> None:
        self.gates[tag].set()

    @ma.endpoint
    async def on_their_way(self) -> tuple[int, int]:
        """Payloads that this proc still expects, and what waits for them."""
        delivery = active_router().delivery
        return len(delivery._inbound), len(delivery.held)

    @ma.endpoint
    async def take(self, data: bytes) -> None: ...


class Asker(ma.Actor):
    @ma.endpoint
    async def ask(self, other: Slow, tag: str) -> str:
        return await other.answer.call_one(tag)

    @ma.endpoint
    async def send_and_die(self, other: Slow, size: int, before: int = 0) -> None:
        for _ in range(before):
            await other.take.call_one(b"\x01" * size)
        other.take.broadcast(b"\x01" * size)
        await asyncio.sleep(0)  # it goes out
        os.kill(os.getpid(), signal.SIGKILL)


async def until_asked(slow: Slow, tag: str) -> None:
    async with asyncio.timeout(10):
        while not await slow.has_been_asked.call_one(tag):
            await asyncio.sleep(0.01)


async def test_an_answer_to_a_former_life_is_not_taken_for_one_to_this() -> None:
    async with ma.local_hosts() as hosts, ma.supervise(ma.ignore):
        slow = await (await hosts.spawn_procs()).spawn("slow", Slow)
        procs = await hosts.spawn_procs()
        asker = await procs.spawn("asker", Asker)
        first = asker.ask.call_one(slow, "first")
        await until_asked(slow, "first")
        asker.send_and_die.broadcast(slow, 0)
        with pytest.raises(ma.ProcDied):
            await first
        await procs.restart(0)
        second = asker.ask.call_one(slow, "second")
        await until_asked(slow, "second")
        await slow.let_go.call_one("first")
        await slow.let_go.call_one("second")
        assert await second == "second"


@pytest.mark.parametrize("transports", ["local,cma,memfd,tcp", ""])
async def test_who_has_only_received_from_a_proc_hears_of_its_death_too(transports: str) -> None:
    """Else it would expect the rest of a payload for ever."""
    async with ma.local_hosts(config=ma.Config(transports=transports)) as hosts, ma.supervise(ma.ignore):
        slow = await (await hosts.spawn_procs()).spawn("slow", Slow)
        asker = await (await hosts.spawn_procs()).spawn("asker", Asker)
        with pytest.raises(ma.ProcDied):
            await asker.send_and_die.call_one(slow, 32 << 20)
        async with asyncio.timeout(5):
            while tuple(await slow.on_their_way.call_one()) != (0, 0):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("before", [0, 3, 40])  # the memory's owner is new; known; connected directly
async def test_who_is_to_read_from_a_proc_that_is_gone_lives_on(before: int) -> None:
    async with ma.local_hosts() as hosts, ma.supervise(ma.ignore):
        slow = await (await hosts.spawn_procs()).spawn("slow", Slow)
        asker = await (await hosts.spawn_procs()).spawn("asker", Asker)
        with pytest.raises(ma.ProcDied):
            await asker.send_and_die.call_one(slow, 300_000, before)
        async with asyncio.timeout(5):
            while tuple(await slow.on_their_way.call_one()) != (0, 0):
                await asyncio.sleep(0.02)
