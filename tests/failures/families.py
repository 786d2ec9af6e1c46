"""Actors that spawn procs and actors of their own, and what these do. Apart from the tests: workers import them."""

import asyncio
import os
import signal

import monarch_async as ma


class Child(ma.Actor):
    """Fails in every way."""

    def __init__(self) -> None:
        self.count = 0

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def counted(self) -> int:
        """Count calls: a fresh actor begins again."""
        self.count += 1
        return self.count

    @ma.endpoint
    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("the root cause")

    @ma.endpoint
    async def exit_soon(self) -> None:
        """Answer, and die when nobody calls any more."""
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGKILL)

    @ma.endpoint
    async def wait(self) -> None:
        await asyncio.Event().wait()


class Parent(ma.Actor):
    """Has children in procs of its own, and no ``__supervise__``."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.news: asyncio.Queue[str] = asyncio.Queue()

    @ma.endpoint
    async def spawn(self, size: int = 1) -> Child:
        self.procs = await ma.this_host().spawn_procs({"gpus": size}, name="kids")
        self.children = await self.procs.spawn("children", Child)
        return self.children

    @ma.endpoint
    async def spawn_grandchild(self) -> None:
        """A child that has a child."""
        self.procs = await ma.this_host().spawn_procs(name="middle")
        self.middle = await self.procs.spawn("middles", Parent)
        await self.middle.spawn.call_one()

    @ma.endpoint
    async def make_grandchild_die(self) -> None:
        await self.middle.make_child_die.call_one()

    @ma.endpoint
    async def make_child_die(self) -> None:
        await self.children.at(0).exit_soon.call_one()

    @ma.endpoint
    async def make_child_fail(self) -> None:
        self.children.at(0).fail.broadcast()

    @ma.endpoint
    async def drop_a_failed_call(self, other: Child | None = None) -> None:
        (other or self.children).at(0).fail.call_one()

    @ma.endpoint
    async def wait_for_child(self) -> None:
        await self.children.wait.call()

    @ma.endpoint
    async def call_on(self, child: Child, endpoint: str) -> object:
        return await getattr(child, endpoint).call_one()

    @ma.endpoint
    async def child_pids(self) -> list[int]:
        return list(await self.children.pid.call())

    @ma.endpoint
    async def wait_heard(self) -> str:
        return await self.news.get()

    def hear(self, failure: ma.Failure) -> None:
        self.news.put_nowait(f"{failure.mesh.name}[{failure.rank}] {type(failure.error).__name__}")


class Hasty(Parent):
    """Spawns while it starts, and never comes up."""

    async def setup(self) -> None:
        procs = await ma.this_host().spawn_procs(name="kids")
        children = await procs.spawn("children", Child)
        await children.exit_soon.call_one()
        await asyncio.Event().wait()


class Tolerant(Parent):
    async def __supervise__(self, failure: ma.Failure) -> bool:
        self.hear(failure)
        return True


class Declining(Parent):
    async def __supervise__(self, failure: ma.Failure) -> bool:
        self.hear(failure)
        return False


class Clumsy(Parent):
    async def __supervise__(self, failure: ma.Failure) -> bool:
        raise KeyError("no plan for this")


class Restarting(Parent):
    async def __supervise__(self, failure: ma.Failure) -> bool:
        assert ma.context().name == "parents"  # a hook runs as its actor
        await failure.mesh.restart(failure.rank)
        self.hear(failure)
        return True


