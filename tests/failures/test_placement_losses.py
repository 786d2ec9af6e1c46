"""Placements when programs, hosts and procs end: who else waits gets them, and nothing stays held."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import IMPATIENT, TOKEN, running_agent

import monarch_async as ma
from monarch_async.scheduler.events import Held

pytestmark = pytest.mark.slow  # several hosts for every test; the same in virtual time runs always

FOUR = "--cpus 4 --gpus 2"


class Placer(ma.Actor):
    @ma.endpoint
    async def place_and_keep(self, demand: ma.Demand) -> list[str]:
        self.placement = await ma.cluster().place(demand)
        await self.placement.spawn_procs(name="inner")
        return [spot.host.name for spot in self.placement.spots]


@asynccontextmanager
async def other_program(url: str, cpus: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another client, which holds so many cpus."""
    program = str(Path(__file__).with_name("holding.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, url, TOKEN, str(cpus), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"holds\n"
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def books(hosts: ma.HostMesh) -> list[tuple[str, Held]]:
    """What the agents say is held, and by which demand."""
    return [(row.name, row.held) for host in (await hosts.status()).hosts for row in host.placed.reservations]


@pytest.mark.parametrize("how", [pytest.param("in order", marks=pytest.mark.slow), "killed"])
async def test_two_programs_share_a_host_and_one_gets_what_the_other_leaves(how: str) -> None:
    demand = ma.Demand([ma.Bundle()] * 2, name="ours")
    async with running_agent(MONARCH_ASYNC_RESOURCES=FOUR) as agent, other_program(agent.url, 3) as other:
        async with ma.attach(agent.url, token=TOKEN, config=IMPATIENT) as hosts:
            async with ma.cluster().place(ma.Demand([ma.Bundle()])):
                assert sorted(await books(hosts)) == [("placement", Held(10_000)), ("theirs", Held(30_000))]
            text = await ma.cluster().explain(demand)
            assert "1 of 4 free" in text
            waiting = asyncio.ensure_future(_await(ma.cluster().place(demand)))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            if how == "killed":
                other.send_signal(signal.SIGKILL)
            else:
                assert other.stdin is not None
                other.stdin.write(b"\n")
            placement = await waiting
            assert await books(hosts) == [("ours", Held(20_000))]
            await placement.release()
            assert await books(hosts) == []


async def _await(request: Any) -> ma.Placement:
    return await request


async def test_bundles_of_a_lost_host_are_lost_and_the_others_go_on() -> None:
    async with (
        running_agent(name="a", MONARCH_ASYNC_RESOURCES=FOUR) as a,
        running_agent(name="b", MONARCH_ASYNC_RESOURCES=FOUR) as b,
    ):
        async with ma.attach(a.url, b.url, token=TOKEN, config=IMPATIENT) as hosts:
            placement = await ma.cluster().place(ma.Demand([ma.Bundle()] * 2, strategy="strict_spread"))
            ranks = {spot.host.name: rank for rank, spot in enumerate(placement.spots)}
            assert set(ranks) == {"a", "b"}
            b.process.kill()
            async with asyncio.timeout(10):
                while not placement.lost:
                    await asyncio.sleep(0.01)
            assert placement.lost == {ranks["b"]}
            with pytest.raises(ma.HostLost, match=f"bundle {ranks['b']} of placement placement was there"):
                placement.spawn_procs()
            procs = await placement.spawn_procs(bundles=[ranks["a"]])
            assert procs.extent == {"bundles": 1}
            assert await books(hosts.slice(hosts=0)) == [("placement", Held(10_000))]
            await placement.release()
            assert await books(hosts.slice(hosts=0)) == []


async def test_a_block_on_a_host_that_is_lost_raises_that_and_frees_the_rest() -> None:
    async with (
        running_agent(name="a", MONARCH_ASYNC_RESOURCES=FOUR) as a,
        running_agent(name="b", MONARCH_ASYNC_RESOURCES=FOUR) as b,
    ):
        async with ma.attach(a.url, b.url, token=TOKEN, config=IMPATIENT) as hosts:
            with pytest.raises(ma.HostLost, match="host b lost"):
                async with ma.cluster().place(ma.Demand([ma.Bundle()] * 2, strategy="strict_spread")) as placement:
                    await placement.spawn_procs()
                    b.process.kill()
                    await asyncio.sleep(60)
            assert await books(hosts.slice(hosts=0)) == []
            holdings = await ma.cluster().holdings()
            assert [(host.name, host.free == host.total) for host in holdings.hosts] == [("a", True)]


async def test_a_worker_places_on_another_host_and_what_it_held_is_freed_with_it() -> None:
    async with (
        running_agent(name="a", MONARCH_ASYNC_RESOURCES=FOUR) as a,
        running_agent(name="b", MONARCH_ASYNC_RESOURCES=FOUR) as b,
    ):
        async with (
            ma.attach(a.url, b.url, token=TOKEN, config=IMPATIENT) as hosts,
            ma.supervise(ma.ignore),
        ):
            procs = await hosts.slice(hosts=0).spawn_procs(name="outer")
            placer = await procs.spawn("placer", Placer)
            there = ma.Demand([ma.Bundle()] * 2, hosts=["b"], name="theirs")
            assert await placer.place_and_keep.call_one(there) == ["b", "b"]
            assert await books(hosts) == [("theirs", Held(20_000))]
            await procs.kill()
            async with asyncio.timeout(5):
                while await books(hosts) or (await hosts.status()).hosts[1].procs:
                    await asyncio.sleep(0.01)


async def test_procs_do_not_start_in_a_placement_that_has_ended() -> None:
    async with (
        running_agent(MONARCH_ASYNC_RESOURCES=FOUR) as agent,
        ma.attach(agent.url, token=TOKEN, config=IMPATIENT) as hosts,
    ):
        placement = await ma.cluster().place(ma.Demand([ma.Bundle()]))
        await placement.release()
        placement.is_released = False  # as if that were not known yet
        with pytest.raises(ma.SpawnFailed, match=r"procs\[0\].* its placement has ended"):
            await placement.spawn_procs()
        assert not (await hosts.status()).hosts[0].procs


async def test_what_an_agent_says_it_has_is_what_is_placed_on() -> None:
    command = [
        sys.executable, "-m", "monarch_async.cli.main", "agent", "--name", "h", "--cpus", "2.5", "--gpus", "7,9",
        "--memory", "1G", "--label", "zone=a", "--resource", "tokens=1",
    ]  # fmt: skip
    async with (
        running_agent(command=command) as agent,
        ma.attach(agent.url, token=TOKEN, config=IMPATIENT) as hosts,
    ):
        assert hosts.hosts[0].resources == ma.Resources(2.5, ("7", "9"), 1 << 30, {"zone": "a"}, {"tokens": 1.0})
        async with ma.cluster().place(ma.Demand([ma.Bundle(gpus=1)] * 2, labels={"zone": "a"})) as placement:
            assert [spot.gpus for spot in placement.spots] == [("7",), ("9",)]
        with pytest.raises(ma.Unschedulable):
            await ma.cluster().place(ma.Demand([ma.Bundle()], labels={"zone": "b"}))
