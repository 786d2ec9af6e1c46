"""Actors of the tests of pools, and those that use a pool from elsewhere."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import monarch_async as ma
from monarch_async.mesh.domain import active_domain


class Engine(ma.Actor):
    """A replica. ``folder`` has a file for each that was started."""

    def __init__(self, folder: str = "", fails: int = 0) -> None:
        """Fail where no more than ``fails`` were started before."""
        if folder:
            there = len(list(Path(folder).iterdir()))
            Path(folder, f"{there}-{os.getpid()}").touch()
            if there < fails:
                raise ValueError("no such model")
        self._waiting: dict[str, asyncio.Event] = {}

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def hold(self, path: str, name: str) -> int:
        """Note that it runs, and go on when told to."""
        event = self._waiting.setdefault(name, asyncio.Event())
        Path(path, name).write_text(str(os.getpid()))
        await event.wait()
        return os.getpid()

    @ma.endpoint
    async def go_on(self, name: str) -> None:
        self._waiting.setdefault(name, asyncio.Event()).set()

    @ma.endpoint
    async def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @ma.endpoint
    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @ma.endpoint
    async def fail(self) -> None:
        raise KeyError("no such thing")


class Breaking(ma.Actor):
    """One that ends soon after it has started."""

    def __init__(self, folder: str) -> None:
        there = len(list(Path(folder).iterdir()))
        Path(folder, str(there)).touch()
        if there:
            raise ValueError(f"broken the {there + 1}. time")

    @ma.endpoint
    async def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Caller(ma.Actor):
    """One that leases from a pool of another process."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    @ma.endpoint
    async def pid_of(self, key: str | None = None) -> int:
        async with self.pool.lease(key) as replica:
            return await replica.pid.call_one()

    @ma.endpoint
    async def same_pool(self, pool: Any) -> bool:
        return pool is self.pool

    @ma.endpoint
    async def keep(self, path: str) -> None:
        """Keep a lease until cancelled."""
        async with self.pool.lease() as replica:
            Path(path).write_text(str(await replica.pid.call_one()))
            await asyncio.Event().wait()

    @ma.endpoint
    async def ask(self, path: str) -> None:
        """Wait for a lease."""
        Path(path).write_text("waits")
        async with self.pool.lease():
            Path(path).write_text("has it")

    @ma.endpoint
    async def unanswered(self) -> int:
        """Return how many calls of this process wait for an answer."""
        return len(active_domain().router.pending)

    @ma.endpoint
    async def numbers(self) -> list[int]:
        return [number async for number in self.pool.count.stream_one(4)]

    @ma.endpoint
    async def drain_one(self) -> int:
        async with self.pool.lease() as replica:
            pid = await replica.pid.call_one()
        await self.pool.drain(replica)
        return pid

    @ma.endpoint
    async def table(self) -> str:
        return str(await self.pool.status())

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()


class Keeper(ma.Actor):
    """One that has a pool of its own."""

    @ma.endpoint
    async def pool_for(self, caller: Any) -> int:
        async with ma.ActorPool(Engine, bundle=ma.Bundle(cpus=1)) as pool:
            return await caller.lend.call_one(pool)

    @ma.endpoint
    async def own(self, path: str) -> None:
        async with ma.ActorPool(Engine) as pool:
            Path(path).write_text(str(await pool.pid.call_one()))
            await asyncio.Event().wait()


class Borrower(ma.Actor):
    @ma.endpoint
    async def lend(self, pool: Any) -> int:
        return await pool.pid.call_one()
