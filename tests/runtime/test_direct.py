"""Paths that leave the agent: when they do, that order is kept, and what happens when an end dies."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

import monarch_async as ma
from monarch_async.runtime.direct import DIRECT, PATIENCE
from monarch_async.runtime.path import Path
from monarch_async.runtime.router import active_router


@pytest.fixture
async def hosts() -> AsyncIterator[ma.HostMesh]:
    """Hosts of each test's own: some of them end in failures."""
    async with ma.local_hosts() as hosts:
        yield hosts


class Member(ma.Actor):
    def __init__(self) -> None:
        self.seen: list[int] = []

    @ma.endpoint
    async def note(self, number: int) -> int:
        self.seen.append(number)
        return number

    @ma.endpoint
    async def slow(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @ma.endpoint
    async def noted(self) -> list[int]:
        return self.seen

    @ma.endpoint
    async def count(self, limit: int):
        for number in range(limit):
            yield number
            if number % 7 == 0:
                await asyncio.sleep(0)

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def ask(self, other: "Member", count: int) -> int:
        total = 0
        for number in range(count):
            total += await other.note.call_one(number)
        return total

    @ma.endpoint
    async def last_words(self) -> str:
        asyncio.get_running_loop().call_later(0.0, os.kill, os.getpid(), signal.SIGKILL)
        return "last"


def path_to(mesh: Member, rank: int = 0) -> Path:
    return mesh.at(rank).cast.paths[0]  # type: ignore[attr-defined]


async def make_direct(mesh: Member, rank: int = 0) -> Path:
    one = mesh.at(rank)
    path = path_to(mesh, rank)
    for _ in range(100):
        for _ in range(PATIENCE + 1):
            await one.pid.call_one()
        if path.turns == DIRECT:
            return path
        await asyncio.sleep(0.01)  # the handshake is under way
    raise AssertionError("the path stayed with the agent")


async def test_a_path_used_one_call_at_a_time_becomes_direct(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 2})
    mesh = await procs.spawn("members", Member)
    path = await make_direct(mesh)
    assert path.connection.address == path.dst
    assert path_to(mesh, 1).turns >= 0
    await procs.stop()


async def test_order_is_kept_across_the_moves(hosts: ma.HostMesh) -> None:
    """Single calls, pipelined ones, casts and broadcasts, while the path moves there and back again."""
    procs = await hosts.spawn_procs({"gpus": 3})
    mesh = await procs.spawn("members", Member)
    one, sent = mesh.at(1), 0
    directs = 0
    for round in range(60):
        for _ in range(PATIENCE + 5):
            await one.note.call_one(sent)
            sent += 1
        directs += path_to(mesh, 1).turns == DIRECT
        calls = []
        for _ in range(20):
            calls.append(one.note.call_one(sent))
            sent += 1
        if round % 2:
            calls.append(mesh.note.call(sent))
            one.note.broadcast(sent + 1)
            mesh.note.broadcast(sent + 2)
            sent += 3
            calls.append(one.note.call_one(sent))
            sent += 1
        await asyncio.gather(*calls)
    assert await one.noted.call_one() == list(range(sent))
    assert directs > 20
    await procs.stop()


async def test_streams_and_large_payloads_on_a_direct_path(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 1})
    mesh = await procs.spawn("members", Member)
    await make_direct(mesh)
    assert [n async for n in mesh.at(0).count.stream_one(1000)] == list(range(1000))
    data = os.urandom(3_000_000)
    assert await mesh.at(0).note.call_one(data) == data  # type: ignore[arg-type]
    await procs.stop()


async def test_casts_go_directly_too(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 4})
    mesh = await procs.spawn("members", Member)
    await make_direct(mesh, 2)
    assert list(await mesh.note.call(5)) == [5] * 4  # one direct, three through the agent
    for _ in range(100):
        for _ in range(PATIENCE + 1):
            await mesh.pid.call()
        if all(path_to(mesh, rank).turns == DIRECT for rank in range(4)):
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("the paths stayed with the agent")
    assert list(await mesh.note.call(6)) == [6] * 4
    assert [seen[-1] for seen in await mesh.noted.call()] == [6] * 4
    await procs.stop()


async def test_between_actors(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 2})
    mesh = await procs.spawn("members", Member)
    assert await mesh.at(0).ask.call_one(mesh.at(1), 500) == sum(range(500))
    assert await mesh.at(1).noted.call_one() == list(range(500))
    await procs.stop()


@pytest.mark.slow
async def test_death_ends_calls_on_a_direct_path() -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs({"gpus": 2})
        mesh = await procs.spawn("members", Member)
        await make_direct(mesh)
        pid = await mesh.at(0).pid.call_one()
        waiting = mesh.at(0).slow.call_one(60)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ma.ProcDied):
            async with asyncio.timeout(5):
                await waiting
        await procs.restart(0)
        assert await mesh.at(0).pid.call_one() != pid
        await make_direct(mesh)


@pytest.mark.slow
async def test_a_death_not_told_yet_does_not_hit_what_was_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_async.runtime.direct._LAST_WORDS", 0.6)
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs()
        mesh = await procs.spawn("members", Member)
        address = (await make_direct(mesh)).dst
        direct = active_router().direct
        noticed = direct.connection_down
        with monkeypatch.context() as patch:  # the end of its socket is not noticed
            patch.setattr(direct, "connection_down", lambda c: c.address == address or noticed(c))
            await procs.restart(0)
            await mesh.at(0).slow.call_one(0.8)
        await procs.stop()


@pytest.mark.slow
async def test_what_was_answered_before_a_death_arrives() -> None:
    async with ma.local_hosts() as hosts:
        for _ in range(5):
            procs = await hosts.spawn_procs()
            mesh = await procs.spawn("members", Member)
            await make_direct(mesh)
            async with ma.supervise(ma.ignore):
                assert await mesh.at(0).last_words.call_one() == "last"
                with pytest.raises(ma.ProcDied):
                    await mesh.at(0).slow.call_one(60)
            await procs.stop()


@pytest.mark.slow
async def test_it_can_be_switched_off() -> None:
    async with ma.local_hosts(config=ma.Config(direct_calls=False)) as hosts:
        procs = await hosts.spawn_procs()
        mesh = await procs.spawn("members", Member)
        for _ in range(3 * PATIENCE):
            await mesh.at(0).pid.call_one()
        assert path_to(mesh).turns == -1
