"""An agent ends, freezes or cannot be heard: who is told and when, and what is left on its host."""

import asyncio
import contextlib
import os
import signal
import time

import pytest
from agents import IMPATIENT, TOKEN, Agent, descendants, local_agent_pid, running_agent
from victims import Victim

import monarch_async as ma

pytestmark = pytest.mark.slow  # agents of their own for every test; the same in virtual time runs always


async def spawn_on(hosts: ma.HostMesh, gpus: int = 1) -> Victim:
    procs = await hosts.spawn_procs({"gpus": gpus}, name="procs")
    return await procs.spawn("victims", Victim)


def attached(*agents: Agent, config: ma.Config = IMPATIENT):
    return ma.attach(*[agent.url for agent in agents], token=TOKEN, config=config)


async def everything_on(victim: Victim) -> list[int]:
    """The pids of a worker and of what it has started, in and out of its session."""
    return [await victim.pid.call_one(), *await victim.grandchildren.call_one()]


async def test_a_local_agent_that_is_killed_is_lost_at_once(wait_gone) -> None:
    async with ma.local_hosts(2) as hosts:
        victims = await spawn_on(hosts)
        lives, lost = victims.slice(hosts=0), victims.slice(hosts=1)
        pids = await everything_on(lost)
        waiting = [lost.wait_forever.call_one(), victims.wait_forever.call()]
        story = lives.describe_death_of.call_one(lost)
        await lives.echo.call_one(0)
        await lost.echo.call_one(0)
        killed = time.monotonic()
        os.kill(local_agent_pid("host1"), signal.SIGKILL)
        async with asyncio.timeout(5):
            for failed in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(failed, ma.HostLost), failed
                assert failed.host == "host1"
            assert time.monotonic() - killed < 1
            name, text, _ = await story
            assert (name, "host host1 lost" in text) == ("HostLost", True)
            for _ in range(2):
                with pytest.raises(ma.HostLost, match="host1"):
                    await lost.echo.call_one(1)
                with pytest.raises(ma.HostLost, match="host1"):
                    await victims.echo.call(1)
            with pytest.raises(ma.HostLost, match="host1"):
                await lives.ask.call_one(lost, "pid")
        assert await lives.echo.call_one(2) == 2
        await wait_gone(pids, within=5)


async def test_a_host_lost_while_nobody_calls_ends_the_owning_scope() -> None:
    with pytest.raises(ma.HostLost, match="was killed by signal 9"):
        async with ma.local_hosts() as hosts:
            await spawn_on(hosts, gpus=3)
            os.kill(local_agent_pid("host0"), signal.SIGKILL)
            async with asyncio.timeout(10):
                await asyncio.Event().wait()


async def test_an_attached_agent_that_is_killed_is_lost_after_the_window(wait_gone) -> None:
    """Over the network a dead agent looks like a cut: only time tells them apart. Its procs end at once."""
    async with running_agent() as agent, attached(agent) as hosts:
        victim = await spawn_on(hosts)
        pids = await everything_on(victim)
        waiting = victim.wait_forever.call_one()
        await victim.echo.call_one(0)
        os.kill(agent.pid, signal.SIGKILL)
        killed = time.monotonic()
        await wait_gone(pids, within=5)
        with pytest.raises(ma.HostLost, match="no sign of life for") as caught:
            await waiting
        assert caught.value.reason.endswith("(resume_window is 1 s): cannot connect: Connection refused")
        assert 0.5 < time.monotonic() - killed < 5
        with pytest.raises(ma.HostLost):
            await victim.echo.call_one(0)


async def test_an_attached_agent_that_ends_in_order_takes_its_procs_along(wait_gone) -> None:
    async with running_agent() as agent, attached(agent) as hosts:
        victim = await spawn_on(hosts)
        pids = await everything_on(victim)
        waiting = victim.wait_forever.call_one()
        await victim.echo.call_one(0)
        os.kill(agent.pid, signal.SIGTERM)
        with pytest.raises(ma.Lost):
            await waiting
        await wait_gone(pids, within=5)
        assert await agent.process.wait() == 0


@pytest.mark.parametrize(
    "listen", ["tcp://127.0.0.1:0", pytest.param("unix://{folder}/agent.sock", marks=pytest.mark.slow)]
)
async def test_an_agent_frozen_for_less_than_the_window_goes_unnoticed(listen: str, tmp_path) -> None:
    config = ma.Config(resume_window=10.0, heartbeat=0.2)
    async with running_agent(listen.format(folder=tmp_path), config=config) as agent:
        async with attached(agent, config=config) as hosts:
            victim = await spawn_on(hosts)
            answers = [victim.echo.call_one(n) for n in range(50)]
            os.kill(agent.pid, signal.SIGSTOP)
            answers += [victim.echo.call_one(n) for n in range(50, 100)]
            await asyncio.sleep(1.2)  # long enough for the client to have tried another socket
            assert not answers[-1].done()
            os.kill(agent.pid, signal.SIGCONT)
            async with asyncio.timeout(8):
                assert await asyncio.gather(*answers) == list(range(100))


@pytest.mark.parametrize(
    "listen", ["tcp://127.0.0.1:0", pytest.param("unix://{folder}/agent.sock", marks=pytest.mark.slow)]
)
async def test_an_agent_frozen_for_longer_is_lost_and_fenced(listen: str, tmp_path, wait_gone) -> None:
    async with running_agent(listen.format(folder=tmp_path)) as agent, attached(agent) as hosts:
        victim = await spawn_on(hosts)
        pids = await everything_on(victim)
        waiting = victim.wait_forever.call_one()
        await victim.echo.call_one(0)
        os.kill(agent.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(8):
                with pytest.raises(ma.HostLost, match="no sign of life"):
                    await waiting
            note = victim.note.call_one("too late")
            with pytest.raises(ma.HostLost):
                await note
            await wait_gone(pids, within=6)  # by their own lease: the agent is still frozen
        finally:
            os.kill(agent.pid, signal.SIGCONT)
        await agent.wait_said("left (")
        async with asyncio.timeout(8):
            while [pid for pid in descendants(agent.pid) if pid in pids]:
                await asyncio.sleep(0.01)


async def test_procs_end_when_their_agent_thaws_too_late(wait_gone) -> None:
    """Whole host frozen, procs included, then thawed: nothing of the old life is there for long."""
    async with running_agent() as agent, attached(agent) as hosts:
        victim = await spawn_on(hosts)
        pids = await everything_on(victim)
        waiting = victim.wait_forever.call_one()
        await victim.echo.call_one(0)
        frozen = [agent.pid, *descendants(agent.pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(8):
                with pytest.raises(ma.HostLost):
                    await waiting
        finally:
            for pid in frozen:
                with contextlib.suppress(ProcessLookupError):  # the agent thaws first, and ends the others
                    os.kill(pid, signal.SIGCONT)
        await wait_gone(pids, within=3)


async def test_a_frozen_local_agent_is_ended_when_it_is_given_up(wait_gone) -> None:
    began = time.monotonic()
    with pytest.raises(ma.HostLost, match="no sign of life"):
        async with ma.local_hosts(config=IMPATIENT) as hosts:
            victim = await spawn_on(hosts)
            pids = await everything_on(victim)
            agent = local_agent_pid("host0")
            os.kill(agent, signal.SIGSTOP)
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
    await wait_gone([agent, *pids], within=3)
    assert time.monotonic() - began < 8


async def test_a_client_that_is_busy_for_longer_than_the_window_keeps_its_local_hosts() -> None:
    """It is stopped in a debugger, say, or loads a dataset on its loop."""
    async with ma.local_hosts(config=IMPATIENT) as hosts:
        victim = await spawn_on(hosts)
        time.sleep(1.8)  # noqa: ASYNC251
        assert await victim.echo.call_one(1) == 1


async def test_a_client_silent_for_longer_than_the_window_loses_its_lease_on_attached_hosts(wait_gone) -> None:
    """From over the network its agent cannot tell it from a dead one."""
    async with running_agent() as agent, attached(agent) as hosts:
        victim = await spawn_on(hosts)
        pids = await everything_on(victim)
        time.sleep(2.0)  # noqa: ASYNC251
        with pytest.raises(ma.HostLost, match="lease has run out"):
            await victim.echo.call_one(1)
        await wait_gone(pids, within=5)
        await agent.wait_said("not heard for")
