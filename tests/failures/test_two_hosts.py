"""Two hosts: their agents dial each other on first use; order, deaths and ends reach across."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import IMPATIENT, TOKEN, Agent, running_agent
from victims import Victim
from workload import Ledger

import monarch_async as ma
from monarch_async.runtime.router import active_router
from monarch_async.testing import FaultProxy
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.frame import frame_length

pytestmark = pytest.mark.slow  # two agents for every test; the same in virtual time runs always


@contextlib.asynccontextmanager
async def two_attached(config: ma.Config = IMPATIENT) -> AsyncIterator[tuple[ma.HostMesh, Agent, Agent]]:
    async with running_agent(name="a", config=config) as a, running_agent(name="b", config=config) as b:
        async with ma.attach(a.url, b.url, token=TOKEN, config=config) as hosts:
            yield hosts, a, b


async def test_an_actor_calls_one_on_another_local_host() -> None:
    async with ma.local_hosts(2) as hosts:
        victims = await (await hosts.spawn_procs()).spawn("victims", Victim)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        assert await here.ask.call_one(there, "pid") == await there.pid.call_one()
        assert await there.ask.call_one(here, "pid") == await here.pid.call_one()
        assert sorted(await victims.pid.call()) == sorted([await here.pid.call_one(), await there.pid.call_one()])


async def test_a_death_is_told_to_callers_on_the_other_host() -> None:
    async with ma.local_hosts(2) as hosts:
        victims = await (await hosts.spawn_procs()).spawn("victims", Victim)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        await here.ask.call_one(there, "pid")
        story = here.describe_death_of.call_one(there)
        await here.echo.call_one(0)
        with pytest.raises(ma.ProcDied):
            await there.exit.call_one(4)
        async with asyncio.timeout(5):
            name, text, _ = await story
            assert (name, "exited with status 4" in text) == ("ProcDied", True)
            with pytest.raises(ma.RemoteError, match="exited with status 4"):
                await here.ask.call_one(there, "pid")


async def test_both_ways_at_once_keep_their_order() -> None:
    """Whoever speaks first, each way between two agents has one path: large payloads would show a second one."""
    async with two_attached(ma.Config(transports="")) as (hosts, a, b):
        ledgers = await (await hosts.spawn_procs({"gpus": 2})).spawn("ledgers", Ledger)
        pairs = [(hosts_, gpus, 1 - hosts_, gpus) for hosts_ in (0, 1) for gpus in (0, 1)]
        async with asyncio.timeout(30):
            await asyncio.gather(
                *[
                    ledgers.slice(hosts=h, gpus=g).pester.call_one(ledgers.slice(hosts=h2, gpus=g2), 600_000, 60)
                    for h, g, h2, g2 in pairs
                ]
            )
        for entries in await ledgers.take.call():
            assert entries == list(range(60))
        assert not [line for agent in (a, b) for line in agent.said if "closed the connection" in line]


class Sender(ma.Actor):
    """Sends large payloads."""

    @ma.endpoint
    async def make(self, size: int) -> bytes:
        return bytes(size)

    @ma.endpoint
    async def send(self, other: "Sender", size: int) -> int:
        return await other.measure.call_one(bytes(size))

    @ma.endpoint
    async def measure(self, data: bytes) -> int:
        return len(data)

    @ma.endpoint
    async def is_listening(self) -> bool:
        return active_router().plane.is_listening


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_data_plane_listens_only_for_other_machines(kind: str, tmp_path: Path) -> None:
    """As far as one can know: who is reached over TCP may be anywhere."""
    urls = ["tcp://127.0.0.1:0"] * 2 if kind == "tcp" else [f"unix://{tmp_path}/{n}.sock" for n in "ab"]
    is_near = kind == "unix"
    async with running_agent(urls[0], "a") as a, running_agent(urls[1], "b") as b:
        async with ma.attach(a.url, b.url, token=TOKEN) as hosts:
            senders = await (await hosts.spawn_procs({"gpus": 2})).spawn("senders", Sender)
            assert list(await senders.measure.call(bytes(1_000_000))) == [1_000_000] * 4
            assert active_router().plane.is_listening != is_near
            first = senders.at(0)
            assert await first.send.call_one(senders.at(1), 1_000_000) == 1_000_000
            assert not await first.is_listening.call_one()
            assert len(await first.make.call_one(1_000_000)) == 1_000_000
            assert await first.is_listening.call_one() != is_near
            assert await first.send.call_one(senders.at(2), 1_000_000) == 1_000_000  # on the other host
            assert await first.is_listening.call_one()


def proxy_to(agent: Agent) -> FaultProxy:
    return FaultProxy(agent.url, frame_length=frame_length, skip=handshake_length)


async def test_cuts_between_two_agents_are_not_noticed() -> None:
    """Each dials the other for what it sends itself, so both ways pass as ``to_listener``."""
    config = ma.Config(resume_window=20.0, heartbeat=0.5, chunk=32 << 10, large=16 << 10, transports="")
    async with running_agent(name="a", config=config) as a, running_agent(name="b", config=config) as b:
        async with proxy_to(a) as to_a, proxy_to(b) as to_b:
            async with ma.attach(to_a.url, to_b.url, token=TOKEN, config=config) as hosts:
                ledgers = await (await hosts.spawn_procs()).spawn("ledgers", Ledger)
                here, there = ledgers.slice(hosts=0), ledgers.slice(hosts=1)
                cuts = [
                    proxy.cut("to_listener", at_frame=proxy.frames["to_listener"] + n, after_bytes=n)
                    for proxy in (to_a, to_b)
                    for n in (7, 20, 60)
                ]
                async with asyncio.timeout(30):
                    await here.pester.call_one(there, 100_000, 60)
                assert [cut.is_set() for cut in cuts] == [True] * 6
                assert await there.take.call_one() == list(range(60))


async def test_an_agent_that_is_lost_is_lost_to_actors_elsewhere_too() -> None:
    async with two_attached() as (hosts, _, b), ma.supervise(ma.ignore):
        victims = await (await hosts.spawn_procs()).spawn("victims", Victim)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        story = here.describe_death_of.call_one(there)
        await here.echo.call_one(0)
        os.kill(b.pid, signal.SIGKILL)
        async with asyncio.timeout(10):
            name, text, _ = await story
            assert name == "HostLost"
            assert "host b lost" in text
            with pytest.raises(ma.RemoteError, match="HostLost"):
                await here.ask.call_one(there, "pid")
            assert await here.echo.call_one(1) == 1


@pytest.mark.parametrize("host", [0, 1])
async def test_what_an_actor_spawned_ends_with_its_proc_wherever_it_is(host: int, wait_gone, capfd) -> None:
    """An owner that is killed can stop nothing itself."""
    async with ma.local_hosts(2) as hosts:
        owner = await (await hosts.slice(hosts=0).spawn_procs()).spawn("owner", Victim)
        owned = await owner.spawn_on.call_one(hosts.slice(hosts=host))
        await owned.say.call_one("reaches the client")
        pids = [await owned.pid.call_one(), *await owned.grandchildren.call_one()]
        os.kill(await owner.pid.call_one(), signal.SIGKILL)
        with pytest.raises(ma.ProcDied):
            await owner.wait_forever.call_one()
        await wait_gone(pids, within=5)
        with pytest.raises(ma.ProcDied, match="the proc that spawned it has died"):
            await owned.echo.call_one(1)
    assert "[owned 0] reaches the client" in capfd.readouterr().out

