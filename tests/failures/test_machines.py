"""Real hosts: what happens to a program when machines and the links between them fail.

Each host is a network namespace with an address of its own (see `machines`).
"""

import asyncio
import contextlib
import os
import signal
import time

import pytest
from agents import descendants
from machines import Network, machines, needs_machines
from victims import Victim
from workload import Ledger, block, keep_busy

import monarch_async as ma

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), needs_machines]

WINDOW = 2.0
QUICK = ma.Config(resume_window=WINDOW, heartbeat=0.25, stop_grace=0.5, transports="")
PATIENT = ma.Config(resume_window=20.0, heartbeat=0.25, stop_grace=0.5, transports="", chunk=32 << 10)


async def ledgers_on(hosts: ma.HostMesh) -> Ledger:
    return await (await hosts.spawn_procs()).spawn("ledgers", Ledger)


async def victims_on(hosts: ma.HostMesh) -> Victim:
    return await (await hosts.spawn_procs()).spawn("victims", Victim)


# -- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1])
async def test_a_cable_that_is_out_for_less_than_the_window_is_not_noticed(cut: int) -> None:
    """Whether it is the caller's machine or the other one, and whether it is the client or an agent who calls."""
    async with machines(2, PATIENT) as net, net.attached() as hosts:
        ledgers, others = await ledgers_on(hosts), await ledgers_on(hosts)
        here, there = ledgers.slice(hosts=0), ledgers.slice(hosts=1)
        await here.pester.call_one(there, 50_000, 6)  # their agents know each other
        await there.take.call_one()
        work = [
            asyncio.ensure_future(here.pester.call_one(there, 50_000, 2000)),
            asyncio.ensure_future(keep_busy(others, rounds=200, size=100_000)),
        ]
        while not await _has_begun(others):
            pass
        net[cut].cut()
        assert not any(task.done() for task in work)
        await asyncio.sleep(1.5)  # how long it is out: sockets are given up and dialled again meanwhile
        assert not any(task.done() for task in work)
        net[cut].mend()
        async with asyncio.timeout(40):
            await asyncio.gather(*work)
        assert await there.take.call_one() == list(range(2000))


async def _has_begun(ledgers: Ledger) -> bool:
    return min(await ledgers.length.call()) > 10


async def test_a_cable_that_is_out_for_longer(wait_gone) -> None:
    """`HostLost` for the client and for actors elsewhere; the procs there end by themselves; the others go on."""
    async with machines(3, QUICK) as net, net.attached() as hosts, ma.supervise(ma.ignore):
        victims = await victims_on(hosts)
        first, second, cut = (victims.slice(hosts=n) for n in range(3))
        pids = [await cut.pid.call_one(), *await cut.grandchildren.call_one()]
        stories = [one.describe_death_of.call_one(cut) for one in (first, second)]
        pending = [cut.wait_forever.call_one(), victims.wait_forever.call()]
        await asyncio.gather(*[one.echo.call_one(0) for one in (first, second, cut)])
        net[2].cut()
        began = time.monotonic()
        async with asyncio.timeout(15):
            for failed in await asyncio.gather(*pending, return_exceptions=True):
                assert isinstance(failed, ma.HostLost) and net[2].name in str(failed), failed
            for name, text, _ in await asyncio.gather(*stories):
                assert name == "HostLost" and net[2].name in text
            assert WINDOW - 1 < time.monotonic() - began < 2 * WINDOW + 1
            await wait_gone(pids, within=2 * WINDOW + 2)
            with pytest.raises(ma.HostLost):
                await cut.echo.call_one(1)
            with pytest.raises(ma.RemoteError, match="HostLost"):
                await first.ask.call_one(cut, "pid")
            assert await first.ask.call_one(second, "pid") == await second.pid.call_one()
        net[2].mend()
        assert await first.echo.call_one(2) == 2


async def test_hosts_dial_each_other_on_first_use() -> None:
    async with machines(3, QUICK) as net, net.attached() as hosts:
        victims = await victims_on(hosts)
        assert _connected(net) == set()
        first, second, third = (victims.slice(hosts=n) for n in range(3))
        assert await first.ask.call_one(second, "pid") == await second.pid.call_one()
        assert _connected(net) == {(0, 1)}
        assert await third.ask.call_one(first, "pid") == await first.pid.call_one()
        assert _connected(net) == {(0, 1), (0, 2)}


def _connected(net: Network) -> set[tuple[int, int]]:
    """Which machines have a TCP connection to each other."""
    found: set[tuple[int, int]] = set()
    addresses = {_hex_address(machine.address): index for index, machine in enumerate(net)}
    for index, machine in enumerate(net):
        assert machine.agent is not None
        with open(f"/proc/{machine.agent.pid}/net/tcp") as lines:
            for line in list(lines)[1:]:
                peer = addresses.get(line.split()[2].partition(":")[0])
                if peer is not None:
                    found.add((min(index, peer), max(index, peer)))
    return found


def _hex_address(address: str) -> str:
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


async def test_control_stays_fast_while_bulk_fills_a_slow_link() -> None:
    """Between client and host, and from host to host."""
    config = ma.Config(resume_window=20.0, heartbeat=0.5, stop_grace=0.5, transports="tcp", bulk_window=1 << 20)
    async with machines(2, config) as net, net.attached() as hosts:
        took = await _calls_while_busy(net, hosts)
        assert len(took) > 10
        assert took[len(took) // 2] < 0.25 and took[-1] < 1.5, took


async def test_control_waits_for_no_large_payload_that_goes_in_chunks() -> None:
    """Nor where the data plane is off, and all goes over the one connection."""
    config = ma.Config(resume_window=20.0, heartbeat=0.5, stop_grace=0.5, transports="", chunk=64 << 10)
    async with machines(2, config) as net, net.attached() as hosts:
        took = await _calls_while_busy(net, hosts)
        assert len(took) > 10
        assert took[len(took) // 2] < 0.25 and took[-1] < 1.0, took  # the agent has two seconds' worth to pass on


async def _calls_while_busy(net: Network, hosts: ma.HostMesh) -> list[float]:
    """How long calls take, in order of that, while large payloads go to another actor there and come back."""
    busy, idle = (await ledgers_on(hosts)).slice(hosts=1), (await ledgers_on(hosts)).slice(hosts=1)
    net[1].slow_down(4 << 20)
    size = 12 << 20
    bulk = asyncio.ensure_future(busy.enter_large.call_one(1, block(1, size)))
    took = []
    while not bulk.done():
        began = time.monotonic()
        await idle.enter.call_one(2)
        took.append(time.monotonic() - began)
        await asyncio.sleep(0.02)
    assert await bulk == block(1, size)
    return sorted(took)


@pytest.mark.parametrize("direction", ["there", "back"])
async def test_a_link_between_two_hosts_that_fails_one_way(direction: str) -> None:
    """The client reaches both all the while; calls from one to the other end, and nobody waits for ever."""
    async with machines(2, QUICK) as net, net.attached() as hosts, ma.supervise(ma.ignore):
        victims = await victims_on(hosts)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        assert await here.ask.call_one(there, "pid") == await there.pid.call_one()
        story = here.describe_death_of.call_one(there)
        await here.echo.call_one(0)
        sender, other = (net[0], net[1]) if direction == "there" else (net[1], net[0])
        sender.cut_to(other)
        began = time.monotonic()
        async with asyncio.timeout(6 * WINDOW):
            name, text, _ = await story
            assert name == "HostLost" and net[1].name in text, text
        assert time.monotonic() - began < 2 * WINDOW + 1
        async with asyncio.timeout(6 * WINDOW):
            with pytest.raises(ma.RemoteError, match="HostLost"):
                await here.ask.call_one(there, "pid")
        assert await victims.echo.call(1) is not None
        sender.mend_to(other)
        async with asyncio.timeout(10):
            await _until_reached(here, there)


async def _until_reached(here: Victim, there: Victim) -> None:
    """Their agents dial again when somebody has something to say."""
    while True:
        with contextlib.suppress(ma.RemoteError):
            await here.ask.call_one(there, "pid")
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("direction", ["there", "back"])
async def test_a_link_to_the_client_that_fails_one_way(direction: str, wait_gone) -> None:
    async with machines(1, QUICK) as net, net.attached() as hosts, ma.supervise(ma.ignore):
        victim = await victims_on(hosts)
        pids = [await victim.pid.call_one()]
        waiting = victim.wait_forever.call_one()
        await victim.echo.call_one(0)
        if direction == "there":
            net.cut_from_client(net[0])
        else:
            net[0].cut_to(None)
        async with asyncio.timeout(4 * WINDOW):
            with pytest.raises(ma.HostLost):
                await waiting
        await wait_gone(pids, within=2 * WINDOW + 2)
        net.mend_from_client(net[0]) if direction == "there" else net[0].mend_to(None)


# -- machines ------------------------------------------------------------------------------------------------------


async def test_a_machine_that_loses_its_power() -> None:
    async with machines(2, QUICK) as net, net.attached() as hosts, ma.supervise(ma.ignore):
        victims = await victims_on(hosts)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        story = here.describe_death_of.call_one(there)
        waiting = there.wait_forever.call_one()
        await victims.echo.call(0)
        net[1].cut()  # first: a dying kernel sends no last words
        net[1].kill()
        async with asyncio.timeout(4 * WINDOW):
            with pytest.raises(ma.HostLost):
                await waiting
            assert (await story)[0] == "HostLost"
        assert await here.echo.call_one(1) == 1


async def test_a_machine_suspended_for_less_than_the_window_goes_on() -> None:
    async with machines(2, PATIENT) as net, net.attached() as hosts:
        ledgers = await ledgers_on(hosts)
        here, there = ledgers.slice(hosts=0), ledgers.slice(hosts=1)
        work = asyncio.ensure_future(here.pester.call_one(there, 50_000, 300))
        await asyncio.sleep(0.05)
        net[1].freeze()
        await asyncio.sleep(1.5)
        assert not work.done()
        net[1].thaw()
        async with asyncio.timeout(30):
            await work
        assert await there.take.call_one() == list(range(300))


async def test_a_machine_suspended_for_longer_is_fenced(wait_gone) -> None:
    """What it was doing when it wakes reaches nobody; its procs end at once."""
    async with machines(2, QUICK) as net, net.attached() as hosts, ma.supervise(ma.ignore):
        victims = await victims_on(hosts)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        pids = [await there.pid.call_one(), *await there.grandchildren.call_one()]
        story = here.describe_death_of.call_one(there)
        notes = there.ask.call_one(here, "wait_forever")
        await victims.echo.call(0)
        net[1].freeze()
        async with asyncio.timeout(4 * WINDOW):
            with pytest.raises(ma.HostLost):
                await notes
            assert (await story)[0] == "HostLost"
        net[1].thaw()
        await wait_gone(pids, within=3)
        assert net[1].agent is not None
        async with asyncio.timeout(5):
            while [pid for pid in descendants(net[1].agent.pid) if pid in pids]:
                await asyncio.sleep(0.01)
        assert await here.echo.call_one(1) == 1


async def test_an_agent_that_is_killed_and_started_again_is_a_new_host() -> None:
    """Its old life is lost at once where it answers that it knows no such session."""
    async with machines(2, QUICK) as net:
        async with net.attached() as hosts, ma.supervise(ma.ignore):
            victims = await victims_on(hosts)
            here, there = victims.slice(hosts=0), victims.slice(hosts=1)
            waiting = there.wait_forever.call_one()
            await victims.echo.call(0)
            net[1].kill_agent()
            await net[1].stop_agent()
            await net[1].start_agent()
            async with asyncio.timeout(4 * WINDOW):
                with pytest.raises(ma.HostLost):
                    await waiting
            assert await here.echo.call_one(1) == 1
        async with net.attached() as again:
            assert list(await (await victims_on(again)).echo.call(2)) == [2, 2]


async def test_a_worker_that_is_killed_while_its_machine_is_cut_off_is_told_of_afterwards() -> None:
    async with machines(2, PATIENT) as net, net.attached() as hosts, ma.supervise(ma.ignore):
        victims = await victims_on(hosts)
        here, there = victims.slice(hosts=0), victims.slice(hosts=1)
        waiting = [there.wait_forever.call_one(), here.ask.call_one(there, "wait_forever")]
        pid = await there.pid.call_one()
        await here.echo.call_one(0)
        net[1].cut()
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(1.0)
        assert not any(call.done() for call in waiting)
        net[1].mend()
        async with asyncio.timeout(10):
            with pytest.raises(ma.ProcDied):
                await waiting[0]
            with pytest.raises(ma.RemoteError, match="ProcDied"):
                await waiting[1]
