"""`context()`: in endpoints of every style, in the tasks and threads they start, and in hooks."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")

Facts = dict[str, Any]
mark: ContextVar[str] = ContextVar("mark", default="unset")


def facts() -> Facts:
    here = ma.context()
    return {
        "rank": here.rank,
        "point": dict(here.point),
        "extent": dict(here.extent),
        "name": here.name,
        "endpoint": here.endpoint,
        "proc": (str(here.proc), here.proc.rank, dict(here.proc.point)),
        "host": here.host,
        "pid": here.proc.pid == os.getpid(),
    }


class Plain(ma.Actor):
    """Only `async` endpoints: everything runs on the loop."""

    def __init__(self) -> None:
        self.hooks = {"__init__": facts()}

    async def setup(self) -> None:
        await asyncio.sleep(0)
        self.hooks["setup"] = facts()

    @ma.endpoint
    async def at_once(self) -> Facts:
        return facts()

    @ma.endpoint
    async def awaiting(self) -> Facts:
        await asyncio.sleep(0)
        return facts()

    @ma.endpoint
    async def in_a_task(self) -> Facts:
        async def inner() -> Facts:
            await asyncio.sleep(0)
            return facts()

        return await asyncio.create_task(inner())

    @ma.endpoint
    async def in_a_thread(self) -> Facts:
        return await asyncio.to_thread(facts)

    @ma.endpoint
    async def streamed(self) -> AsyncIterator[Facts]:
        yield facts()
        await asyncio.sleep(0)
        yield facts()

    @ma.endpoint
    async def all_hooks(self) -> dict[str, Facts]:
        return self.hooks

    @ma.endpoint
    async def is_me(self) -> bool:
        return ma.context().actor is self


class Threaded(Plain):
    """With a plain `def`, so `__init__` runs on the actor's thread too."""

    @ma.endpoint
    def on_thread(self) -> Facts:
        return facts()

    @ma.endpoint
    def in_a_loop_of_its_own(self) -> Facts:
        async def inner() -> Facts:
            return facts()

        return asyncio.run(inner())


class Marks(ma.Actor):
    """What calls leave in context variables stays theirs."""

    @ma.endpoint
    async def leave(self, value: str) -> str:
        before = mark.get()
        mark.set(value)
        return before

    @ma.endpoint
    async def leave_later(self, value: str) -> str:
        await asyncio.sleep(0)
        before = mark.get()
        mark.set(value)
        return before


class Serial(ma.Actor):
    """Works for itself in the background."""

    max_concurrency = 1

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.worked = asyncio.Event()

    @ma.endpoint
    async def begin(self, me: "Serial") -> None:
        self.tasks.append(asyncio.create_task(self.later(me)))

    async def later(self, me: "Serial") -> None:
        await asyncio.sleep(0.01)
        await me.work.call_one()

    @ma.endpoint
    async def work(self) -> None:
        self.worked.set()

    @ma.endpoint
    async def finished(self) -> bool:
        return self.worked.is_set()


class Logs(ma.Actor):
    @ma.endpoint
    async def say(self, text: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", force=True)
        ma.context().log.info(text)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs({"rows": 2, "columns": 2}, name="grid")


@pytest.mark.parametrize("cls", [Plain, Threaded])
async def test_context_says_who_runs_wherever_it_is_asked(procs: ma.ProcMesh, cls: type[Plain]) -> None:
    part = procs.slice(rows=1)
    actors = await part.spawn("actors", cls)
    for rank in range(2):
        one = actors.at(rank)
        expected = {
            "rank": rank,
            "point": {"hosts": 0, "columns": rank},
            "extent": {"hosts": 1, "columns": 2},
            "name": f"actors[{rank}]",
            "proc": (f"grid[{2 + rank}]", 2 + rank, {"hosts": 0, "rows": 1, "columns": rank}),
            "host": "host0",
            "pid": True,
        }
        calls = {name: getattr(one, name) for name in ("at_once", "awaiting", "in_a_task", "in_a_thread")}
        if cls is Threaded:
            calls |= {name: getattr(one, name) for name in ("on_thread", "in_a_loop_of_its_own")}
        for name, endpoint in calls.items():
            assert await endpoint.call_one() == {**expected, "endpoint": name}
        assert [found async for found in one.streamed.stream_one()] == [{**expected, "endpoint": "streamed"}] * 2
        for name, found in (await one.all_hooks.call_one()).items():
            assert found == {**expected, "endpoint": name}
        assert await one.is_me.call_one()
    await actors.stop()


async def test_there_is_no_context_in_the_client() -> None:
    with pytest.raises(RuntimeError, match="only known inside an actor"):
        ma.context()


async def test_context_variables_of_one_call_do_not_leak_into_the_next(procs: ma.ProcMesh) -> None:
    marks = await procs.slice(rows=0, columns=0).spawn("marks", Marks)
    assert [await marks.leave.call_one("a"), await marks.leave_later.call_one("b")] == ["unset", "unset"]
    assert [await marks.leave.call_one("c"), await marks.leave_later.call_one("d")] == ["unset", "unset"]


async def test_work_left_behind_by_a_call_is_not_taken_for_its_caller(procs: ma.ProcMesh) -> None:
    """A task that outlives its endpoint may call the strictly serial actor that started it."""
    serial = await procs.slice(rows=0, columns=0).spawn("serial", Serial)
    await serial.begin.call_one(serial)
    async with asyncio.timeout(5):
        while not await serial.finished.call_one():
            await asyncio.sleep(0.01)


async def test_the_logger_names_actor_and_host(hosts: ma.HostMesh, capfd: pytest.CaptureFixture[str]) -> None:
    procs = await hosts.spawn_procs(name="logging")
    await (await procs.spawn("logs", Logs)).say.call_one("hello")
    await procs.stop()
    said = capfd.readouterr().err
    assert "[logging 0] monarch_async.actor.logs: [logs on host0] hello" in said
