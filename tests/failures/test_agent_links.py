"""Lines between two agents that delay, break, repeat or change frames."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from agents import TOKEN, Agent, running_agent
from workload import Ledger

import monarch_async as ma
from monarch_async.testing import FaultProxy
from monarch_async.testing.proxy import Direction
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.frame import frame_length

pytestmark = [pytest.mark.slow]

PATIENT = ma.Config(resume_window=20.0, heartbeat=0.5, chunk=32 << 10, large=16 << 10, transports="")
IMPATIENT = ma.Config(resume_window=1.0, heartbeat=0.2, stop_grace=0.5, transports="")


@contextlib.asynccontextmanager
async def between_agents(config: ma.Config) -> AsyncIterator[tuple[FaultProxy, Ledger, tuple[Agent, Agent]]]:
    """Two ledgers on two hosts, and the proxy through which the first host, and the client, reach the second."""
    async with running_agent(name="a", config=config) as a, running_agent(name="b", config=config) as b:
        proxy = FaultProxy(b.url, frame_length=frame_length, skip=handshake_length)
        async with proxy, ma.attach(a.url, proxy.url, token=TOKEN, config=config) as hosts:
            async with ma.supervise(ma.ignore):
                yield proxy, await (await hosts.spawn_procs()).spawn("ledgers", Ledger), (a, b)


async def test_cuts_and_delays_are_not_noticed() -> None:
    chance = random.Random(5)
    async with between_agents(PATIENT) as (proxy, ledgers, _):
        here, there = ledgers.slice(hosts=0), ledgers.slice(hosts=1)
        await here.pester.call_one(there, 100_000, 3)
        await there.take.call_one()
        proxy.delay(0.02)
        cuts = [
            proxy.cut(way, at_frame=proxy.frames[way] + number, after_bytes=chance.choice([0, 1, 4, 39]))
            for way, last in (("to_listener", 60), ("to_dialer", 12))
            for number in chance.sample(range(1, last), 4)
        ]
        async with asyncio.timeout(40):
            await here.pester.call_one(there, 100_000, 90)
            while not all(cut.is_set() for cut in cuts):
                await here.pester.call_one(there, 0, 10)
        entries = await there.take.call_one()
        assert entries[:90] == list(range(90)) and len(entries) % 10 == 0


@pytest.mark.parametrize("way", ["to_listener", "to_dialer"])
@pytest.mark.parametrize("fault", ["length", "kind", "repeat"])
async def test_what_repeats_or_changes_frames_is_given_up_and_reached_anew(way: Direction, fault: str) -> None:
    async with between_agents(IMPATIENT) as (proxy, ledgers, agents):
        here, there = ledgers.slice(hosts=0), ledgers.slice(hosts=1)
        await here.pester.call_one(there, 0, 3)
        happened = []
        for at in range(proxy.frames[way] + 1, proxy.frames[way] + 4):  # some may be acknowledgements, said twice
            if fault == "repeat":
                happened.append(proxy.duplicate(way, at_frame=at))
            else:
                happened.append(proxy.corrupt(way, at_frame=at, offset={"length": 3, "kind": 4}[fault]))
        async with asyncio.timeout(30):
            while not all(one.is_set() for one in happened):
                try:
                    await here.pester.call_one(there, 0, 3)
                except ma.Error:
                    break
            with contextlib.suppress(ma.Lost):  # where it was the client's own line, what runs there has ended
                while not await _is_reached(here, there):
                    await asyncio.sleep(0.05)
        assert happened[0].is_set()
        for agent in agents:
            assert agent.process.returncode is None
            assert not [line for line in agent.said if "Traceback" in line], agent.said


async def _is_reached(here: Ledger, there: Ledger) -> bool:
    try:
        await here.pester.call_one(there, 0, 3)
    except ma.RemoteError as error:
        if "ProcDied" in str(error):
            raise await _death_of(there) from error
        return False
    return True


async def _death_of(there: Ledger) -> BaseException:
    try:
        await there.length.call_one()
    except ma.Lost as error:
        return error
    raise AssertionError("it lives")
