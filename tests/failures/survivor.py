"""Actors that outlive their client; run as a program it is such a client: ``survivor.py [URL, ...] NAME``."""

import asyncio
import os
import sys
from collections.abc import Awaitable

import monarch_async as ma


class Counter(ma.Actor):
    """Counts on, whoever asks."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    @ma.endpoint
    async def add(self, n: int) -> int:
        self.count += n
        return self.count

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def say(self, text: str) -> None:
        print(text, flush=True)

    @ma.endpoint
    async def say_after(self, seconds: float, text: str) -> None:
        asyncio.get_running_loop().call_later(seconds, lambda: print(text, flush=True))

    @ma.endpoint
    async def exit_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, os._exit, 5)

    @ma.endpoint
    async def spawn_one(self) -> int:
        """Have a child, and return its pid."""
        self.child = await (await ma.this_host().spawn_procs(name="children")).spawn("child", Counter, 100)
        return await self.child.pid.call_one()

    @ma.endpoint
    async def spawn_on(self, hosts: ma.HostMesh) -> int:
        self.child = await (await hosts.spawn_procs(name="children")).spawn("child", Counter, 100)
        return await self.child.pid.call_one()

    @ma.endpoint
    async def ask_child(self) -> int:
        return await self.child.add.call_one(1)

    @ma.endpoint
    async def ask(self, other: "Counter") -> int:
        return await other.add.call_one(1)

    @ma.endpoint
    async def ask_after(self, seconds: float, other: "Counter") -> None:
        async def ask() -> None:
            await asyncio.sleep(seconds)
            await other.add.call_one(1)

        self.asking = asyncio.ensure_future(ask())

    @ma.endpoint
    async def fail_after(self, seconds: float) -> None:
        """Lose something that nobody looks after: this actor fails, with no call to tell of it."""
        self.lost = await (await ma.this_host().spawn_procs(name="lost")).spawn("lost", Counter)
        await self.lost.exit_after.call_one(seconds)


async def outcome(work: Awaitable[object]) -> str:
    try:
        return str(await work)
    except ma.Error as error:
        return f"{type(error).__name__}: {error}"


async def main(urls: list[str], name: str) -> None:
    """Detach two counters a host, and wait for orders on stdin."""
    async with ma.attach(*urls, token=os.environ["TOKEN"]) as hosts, ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs({"gpus": 2}, detached=name)
        counters = await procs.spawn("counters", Counter, 10)
        plain = await (await hosts.spawn_procs(name="plain")).spawn("plain", Counter)
        pids = list(await counters.pid.call())
        print(*pids, "plain", *await plain.pid.call(), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            known = {"counters": counters, "hosts": hosts, "ma": ma, "procs": procs, "outcome": outcome}
            said = str(await eval(line, known))
            print(said.replace("\n", " "), flush=True)


if __name__ == "__main__":
    from survivor import main  # under the name that others know it by

    asyncio.run(main(sys.argv[1:-1], sys.argv[-1]))
