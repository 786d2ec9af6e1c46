"""A connection over the network that breaks: nothing is lost, repeated or changes places, up to the window."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from agents import IMPATIENT, TOKEN, Agent, running_agent
from workload import Ledger, keep_busy

import monarch_async as ma
from monarch_async.testing import FaultProxy
from monarch_async.testing.proxy import Direction
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.frame import frame_length

#: Patient enough for many cuts on a busy machine; small chunks, so that many frames are there to be cut.
PATIENT = ma.Config(resume_window=20.0, heartbeat=0.5, chunk=32 << 10, large=16 << 10, transports="")


def proxy_to(url: str) -> FaultProxy:
    return FaultProxy(url, frame_length=frame_length, skip=handshake_length)


@contextlib.asynccontextmanager
async def behind_proxy(config: ma.Config = PATIENT) -> AsyncIterator[tuple[FaultProxy, Agent, ma.HostMesh]]:
    async with running_agent(config=config) as agent, proxy_to(agent.url) as proxy:
        async with ma.attach(proxy.url, token=TOKEN, config=config) as hosts:
            yield proxy, agent, hosts


async def ledgers_on(hosts: ma.HostMesh, gpus: int = 2) -> Ledger:
    procs = await hosts.spawn_procs({"gpus": gpus}, name="procs")
    return await procs.spawn("ledgers", Ledger)


@pytest.mark.parametrize("seed", range(3))
async def test_cuts_at_any_frame_either_way_are_not_noticed(seed: int) -> None:
    chance = random.Random(seed)
    async with behind_proxy() as (proxy, _, hosts):
        ledgers = await ledgers_on(hosts)
        there, back = proxy.frames["to_listener"], proxy.frames["to_dialer"]
        cuts = []
        for number in sorted(chance.sample(range(2, 100), 4)):
            cuts.append(proxy.cut("to_listener", at_frame=there + number, after_bytes=chance.choice([0, 1, 3, 39])))
        for number in sorted(chance.sample(range(2, 100), 4)):
            cuts.append(proxy.cut("to_dialer", at_frame=back + number, after_bytes=chance.choice([0, 1, 3, 39])))
        async with asyncio.timeout(50):
            await keep_busy(ledgers, rounds=30, size=200_000)
        assert all(cut.is_set() for cut in cuts), f"only {proxy.frames} frames passed"
        assert proxy.connections > 2


async def test_a_cut_in_the_middle_of_a_large_frame() -> None:
    """One that is kept in pieces: what came of it is dropped with the connection."""
    config = ma.Config(resume_window=20.0, heartbeat=0.5, transports="")  # chunks of a megabyte
    async with behind_proxy(config) as (proxy, _, hosts):
        ledgers = await ledgers_on(hosts, gpus=1)
        cuts = [
            proxy.cut("to_listener", at_frame=proxy.frames["to_listener"] + 3, after_bytes=500_000),
            proxy.cut("to_dialer", at_frame=proxy.frames["to_dialer"] + 6, after_bytes=700_000),
        ]
        async with asyncio.timeout(30):
            await keep_busy(ledgers, rounds=4, size=5_000_000)
        assert all(cut.is_set() for cut in cuts)


@pytest.mark.slow
async def test_a_line_that_is_refused_for_a_while() -> None:
    async with behind_proxy() as (proxy, _, hosts):
        ledgers = await ledgers_on(hosts)
        work = asyncio.ensure_future(keep_busy(ledgers, rounds=30, size=100_000))
        await proxy.wait_frames("to_listener", proxy.frames["to_listener"] + 40)
        proxy.refuse_new()
        proxy.cut_now()
        await asyncio.sleep(0.5)
        assert not work.done()
        proxy.accept_new()
        async with asyncio.timeout(30):
            await work


@pytest.mark.slow
async def test_past_the_window_the_host_is_lost_on_both_sides(wait_gone) -> None:
    async with behind_proxy(IMPATIENT) as (proxy, agent, hosts):
        ledgers = await ledgers_on(hosts)
        pids = list(await ledgers.pid.call())
        proxy.refuse_new()
        proxy.cut_now()
        pending = [ledgers.at(0).enter.call_one(n) for n in range(10)]
        async with asyncio.timeout(10):
            for failed in await asyncio.gather(*pending, return_exceptions=True):
                assert isinstance(failed, ma.HostLost), failed
        await wait_gone(pids, within=5)
        await agent.wait_said("left (not heard for")


@pytest.mark.slow
async def test_a_silent_line_is_lost_too(wait_gone) -> None:
    """No end of stream ever comes: a cable is out."""
    async with behind_proxy(IMPATIENT) as (proxy, _, hosts):
        ledgers = await ledgers_on(hosts)
        pids = list(await ledgers.pid.call())
        proxy.freeze()
        pending = ledgers.at(0).enter.call_one(1)
        async with asyncio.timeout(10):
            with pytest.raises(ma.HostLost, match="no sign of life"):
                await pending
        await wait_gone(pids, within=5)
        proxy.thaw()


async def test_a_line_that_is_silent_for_less_than_the_window_is_replaced() -> None:
    config = ma.Config(resume_window=20.0, heartbeat=0.1)
    async with behind_proxy(config) as (proxy, _, hosts):
        ledgers = await ledgers_on(hosts)
        frozen = proxy.freeze_at("to_listener", at_frame=proxy.frames["to_listener"] + 20)
        work = asyncio.ensure_future(keep_busy(ledgers, rounds=20, size=100_000))
        await frozen.wait()
        await proxy.wait_connections(2)
        proxy.thaw()
        async with asyncio.timeout(30):
            await work


def _harm(proxy: FaultProxy, direction: Direction, fault: str) -> list[asyncio.Event]:
    """Damage the next frames of a direction: several, as an acknowledgement may be said twice."""
    next_ones = range(proxy.frames[direction] + 1, proxy.frames[direction] + 4)
    if fault == "repeat":
        return [proxy.duplicate(direction, at_frame=at) for at in next_ones]
    offset = {"length": 3, "kind": 4}[fault]
    return [proxy.corrupt(direction, at_frame=at, offset=offset) for at in next_ones]


@pytest.mark.parametrize("direction", ["to_listener", "to_dialer"])
@pytest.mark.parametrize("fault", ["repeat", *[pytest.param(f, marks=pytest.mark.slow) for f in ("length", "kind")]])
async def test_a_line_that_repeats_or_changes_frames_is_closed_with_a_reason(
    direction: Direction, fault: str, wait_gone
) -> None:
    """TCP rules this out; what cannot be trusted is given up, and neither end crashes."""
    async with behind_proxy(IMPATIENT) as (proxy, agent, hosts), ma.supervise(ma.ignore):
        ledgers = await ledgers_on(hosts)
        pids = list(await ledgers.pid.call())
        happened = _harm(proxy, direction, fault)
        async with asyncio.timeout(10):
            with contextlib.suppress(ma.HostLost):
                while True:
                    await ledgers.at(0).enter.call_one(1)
                    await asyncio.sleep(0.01)
        assert happened[0].is_set()
        await wait_gone(pids, within=5)
        assert agent.process.returncode is None
        assert not [line for line in agent.said if "Traceback" in line], agent.said
