"""Real agents that are stopped for too long: fenced, dialled again, and used again, empty."""

import asyncio
import contextlib
import os
import signal

import pytest
from agents import IMPATIENT, TOKEN, running_agent
from victims import Victim

import monarch_async as ma


async def follow(seen: list[ma.HostEvent], name: str) -> None:
    async for event in ma.cluster().events():
        if event.host.name == name:
            seen.append(event)


async def wait_seen(seen: list[ma.HostEvent], *kinds: str) -> None:
    async with asyncio.timeout(15):
        while [event.kind for event in seen[-len(kinds) :]] != list(kinds):
            await asyncio.sleep(0.01)


async def spawn_on(hosts: ma.HostMesh) -> Victim:
    return await (await hosts.spawn_procs()).spawn("victims", Victim)


@pytest.mark.slow
async def test_an_agent_stopped_for_too_long_comes_back_empty_and_works(wait_gone) -> None:
    async with running_agent(name="a") as a, running_agent(name="b") as b:
        async with ma.attach(a.url, b.url, token=TOKEN, config=IMPATIENT) as hosts, ma.supervise(ma.ignore):
            seen: list[ma.HostEvent] = []
            following = asyncio.create_task(follow(seen, "b"))
            victims = await spawn_on(hosts)
            here, old = victims.slice(hosts=0), victims.slice(hosts=1)
            pids = [await old.pid.call_one(), *await old.grandchildren.call_one()]
            assert await here.ask.call_one(old, "pid") == pids[0]
            ref = await old.keep.call_one(b"x" * 300_000)
            waiting = old.wait_forever.call_one()
            await old.echo.call_one(0)
            os.kill(b.pid, signal.SIGSTOP)
            try:
                with pytest.raises(ma.HostLost, match="no sign of life"):
                    await waiting
                await wait_gone(pids, within=6)
            finally:
                os.kill(b.pid, signal.SIGCONT)
            await wait_seen(seen, "suspect", "lost", "joining", "up")
            assert seen[-1].host.id == seen[0].host.id
            new = await spawn_on(hosts)
            again = new.slice(hosts=1)
            async with asyncio.timeout(10):
                assert await here.ask.call_one(again, "pid") == await again.pid.call_one()
                assert await again.ask.call_one(here, "pid") == await here.pid.call_one()
                assert await again.echo.call_one(b"y" * 2_000_000) == b"y" * 2_000_000
                kept = await again.keep.call_one(b"z" * 300_000)
                assert await kept == b"z" * 300_000
                why = r"procs\[1\] on b .*client \d+ is gone, this agent was frozen"
                for _ in range(2):
                    with pytest.raises(ma.ProcDied, match=why):
                        await old.echo.call_one(1)
                with pytest.raises(ma.RemoteError, match=r"HostLost|procs\[1\]"):
                    await here.ask.call_one(old, "pid")
                with pytest.raises(ma.Error):
                    await ref
        await following


@pytest.mark.slow
async def test_an_agent_that_was_restarted_is_joined_as_another_host() -> None:
    """On the same port, so that the client finds it; and the loss of the first is told at once."""
    config = ma.Config(resume_window=20.0, heartbeat=0.2, stop_grace=0.5)
    async with contextlib.AsyncExitStack() as stack, running_agent(name="b", config=config) as first:
        async with ma.attach(first.url, token=TOKEN, config=config) as hosts, ma.supervise(ma.ignore):
            seen: list[ma.HostEvent] = []
            following = asyncio.create_task(follow(seen, "b"))
            victim = await spawn_on(hosts)
            waiting = victim.wait_forever.call_one()
            await victim.echo.call_one(0)
            first.process.kill()
            await first.process.wait()
            await stack.enter_async_context(running_agent(first.url, name="b", config=config))
            async with asyncio.timeout(8):
                with pytest.raises(ma.HostLost, match="came back without our session"):
                    await waiting
            await wait_seen(seen, "lost", "left", "joining", "up")
            assert await (await spawn_on(ma.cluster().hosts)).echo.call_one(3) == 3
            with pytest.raises(ma.HostLost):
                await victim.echo.call_one(1)
        await following


@pytest.mark.slow
async def test_an_agent_that_ends_in_order_is_lost_at_once() -> None:
    config = ma.Config(resume_window=20.0, heartbeat=0.2, stop_grace=0.5)
    async with running_agent(name="a", config=config) as a, running_agent(name="b", config=config) as b:
        async with ma.attach(a.url, b.url, token=TOKEN, config=config) as hosts, ma.supervise(ma.ignore):
            seen: list[ma.HostEvent] = []
            following = asyncio.create_task(follow(seen, "b"))
            victims = await spawn_on(hosts)
            here, there = victims.slice(hosts=0), victims.slice(hosts=1)
            assert await here.ask.call_one(there, "pid") == await there.pid.call_one()
            b.process.terminate()
            async with asyncio.timeout(8):
                await b.process.wait()
                await wait_seen(seen, "suspect", "lost")
                with pytest.raises(ma.HostLost, match="its agent has ended"):
                    await there.echo.call_one(1)
                with pytest.raises(ma.RemoteError, match="HostLost"):
                    await here.ask.call_one(there, "pid")
        await following


async def test_a_lost_local_host_has_left_for_good() -> None:
    async with ma.local_hosts(2, config=IMPATIENT) as hosts, ma.supervise(ma.ignore):
        seen: list[ma.HostEvent] = []
        following = asyncio.create_task(follow(seen, "host1"))
        await spawn_on(hosts)
        pid = (await hosts.slice(hosts=1).status()).hosts[0].pid
        os.kill(pid, signal.SIGKILL)
        await wait_seen(seen, "lost", "left")
        assert "killed by signal 9" in seen[-2].why
        assert [host.name for host in ma.cluster().hosts.hosts] == ["host0"]
    await following
