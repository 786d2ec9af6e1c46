"""Actors that share locks, queues and the like."""

import asyncio
import time
from typing import Any

import numpy as np

import monarch_async as ma

#: Made before there are any hosts: it is found when it is used.
NAMED = ma.Lock("of this module")


class Sharer(ma.Actor):
    """Does with locks and queues what it is told."""

    def __init__(self) -> None:
        self.count = 0
        self.tokens: list[int] = []
        self.background: set[asyncio.Task[Any]] = set()

    @ma.endpoint
    async def ready(self) -> None:
        pass

    @ma.endpoint
    async def add(self, lock: Any, counter: "Sharer", times: int) -> None:
        """Add one by reading and writing: right only where nobody else does so meanwhile."""
        for _ in range(times):
            async with lock as token:
                now = await counter.read.call_one()
                await counter.write.call_one(now + 1, token)

    @ma.endpoint
    async def read(self) -> int:
        return self.count

    @ma.endpoint
    async def write(self, count: int, token: int) -> None:
        self.count = count
        self.tokens.append(token)

    @ma.endpoint
    async def written(self) -> tuple[int, list[int]]:
        return self.count, self.tokens

    @ma.endpoint
    async def acquire(self, lock: Any) -> int:
        return await lock.acquire()

    @ma.endpoint
    async def acquire_named(self) -> int:
        return await NAMED.acquire()

    @ma.endpoint
    async def release(self, lock: Any, token: int) -> None:
        await lock.release(token)

    @ma.endpoint
    async def hold_until_cancelled(self, lock: Any, entered: ma.Event) -> None:
        async with lock:
            entered.set()
            await asyncio.Event().wait()

    @ma.endpoint
    async def hold(self, lock: Any, entered: ma.Event, leave: ma.Event) -> None:
        async with lock:
            await entered.set()
            await leave.wait()

    @ma.endpoint
    async def block(self, seconds: float, entered: ma.Event) -> None:
        """Block the loop."""
        await entered.set()
        time.sleep(seconds)  # noqa: ASYNC251

    @ma.endpoint
    def from_a_thread(self, lock: ma.Lock) -> None:
        lock.release(1)

    @ma.endpoint
    async def remember_loop(self) -> None:
        self.loop = asyncio.get_running_loop()

    @ma.endpoint
    def over_the_loop(self, lock: ma.Lock) -> int:
        return asyncio.run_coroutine_threadsafe(lock.acquire(), self.loop).result(10)

    @ma.endpoint
    async def wait(self, barrier: ma.Barrier) -> int:
        return await barrier.wait()

    @ma.endpoint
    async def put(self, queue: ma.Queue[Any], *items: Any) -> None:
        for item in items:
            await queue.put(item)

    @ma.endpoint
    async def put_arrays(self, queue: ma.Queue[Any], count: int, size: int) -> None:
        for number in range(count):
            await queue.put(np.full(size, number))

    @ma.endpoint
    async def put_refs(self, queue: ma.Queue[Any], count: int) -> None:
        """References to objects that nobody else refers to."""
        for number in range(count):
            await queue.put({"ref": await ma.put([number, await ma.put(np.full(10_000, number))])})

    @ma.endpoint
    async def produce(self, queue: ma.Queue[Any], *items: Any) -> None:
        async with queue.producing():
            for item in items:
                await queue.put(item)

    @ma.endpoint
    async def produce_and_fail(self, queue: ma.Queue[Any], item: Any, error: Exception) -> None:
        async with queue.producing():
            await queue.put(item)
            raise error

    @ma.endpoint
    async def produce_for_ever(self, queue: ma.Queue[Any], item: Any) -> None:
        async with queue.producing():
            await queue.put(item)
            await asyncio.Event().wait()

    @ma.endpoint
    async def drain(self, queue: ma.Queue[Any]) -> list[Any]:
        return [item async for item in queue]

    @ma.endpoint
    async def get(self, queue: ma.Queue[Any]) -> Any:
        return await queue.get()

    @ma.endpoint
    async def get_and_sum(self, queue: ma.Queue[Any]) -> float:
        return float((await queue.get()).sum())
