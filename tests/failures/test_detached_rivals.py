"""Detached leases that several want, that hang on placements, or whose procs have spawned on other hosts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from agents import IMPATIENT, TOKEN, is_alive, running_agent
from survivor import Counter

import monarch_async as ma
from monarch_async.control.controller import Controller
from monarch_async.ids import AGENT, address

CONFIG = replace(IMPATIENT, resume_window=5.0)

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def rival(name: str, *urls: str) -> AsyncIterator[Controller]:
    controller = Controller(CONFIG, name)
    try:
        await controller.join_all(urls, TOKEN.encode())
        yield controller
    finally:
        await controller.aclose()


async def test_of_two_that_want_it_at_once_one_has_all_of_it() -> None:
    """And one that cannot have all of it has nothing: the other's hold on the second host keeps it from the first."""
    async with running_agent(name="a", config=CONFIG) as a, running_agent(name="b", config=CONFIG) as b:
        async with ma.attach(a.url, b.url, token=TOKEN, config=CONFIG) as hosts:
            procs = await hosts.spawn_procs(detached="train")
            counters = await procs.spawn("counters", Counter)
            pids = list(await counters.pid.call())
        async with rival("one", a.url, b.url) as one, rival("other", a.url, b.url) as other:
            agents = [address(host, AGENT) for host in sorted(one.hosts)]
            [row] = await one.requests.ask(agents[0], "leases")
            asks = [who.requests.ask(agents[0], "lease_adopt", row["id"], 0) for who in (one, other)]
            outcomes = await asyncio.gather(*asks, return_exceptions=True)
            [refused] = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert isinstance(refused, ma.LeaseHeld) and refused.by in ("one", "other")
            winner, loser = (one, other) if refused.by == "one" else (other, one)
            winner.requests.post(agents[0], "lease_disown", row["id"])
            await winner.requests.ask(agents[1], "lease_adopt", row["id"], 0)
            async with ma.attach(a.url, b.url, token=TOKEN, config=CONFIG):
                with pytest.raises(ma.LeaseHeld, match=refused.by):
                    await ma.cluster().adopt("train")
                [first] = await loser.requests.ask(agents[0], "leases")
                assert first["owner"] == 0  # it was given back
                await winner.aclose()
                await ma.cluster().adopt("train")
        assert all(map(is_alive, pids))
        async with ma.attach(a.url, b.url, token=TOKEN, config=CONFIG):
            await (await ma.cluster().adopt("train")).release()


async def test_a_placement_is_kept_for_as_long_as_its_detached_procs_are() -> None:
    config, cpus = CONFIG, {"MONARCH_ASYNC_RESOURCES": "--cpus 4"}
    async with running_agent(config=config, **cpus) as agent:
        async with ma.attach(agent.url, token=TOKEN, config=config):
            async with ma.cluster().place(ma.Demand([ma.Bundle(cpus=2)])) as placement:
                procs = await placement.spawn_procs(detached="train")
                counters = await procs.spawn("counters", Counter)
            assert await counters.add.call_one(1) == 1
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await ma.cluster().place(ma.Demand([ma.Bundle(cpus=3)]))
        async with ma.attach(agent.url, token=TOKEN, config=config):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await ma.cluster().place(ma.Demand([ma.Bundle(cpus=3)]))
            lease = await ma.cluster().adopt("train")
            await lease.procs.restart(0)  # in the same placement
            assert await lease.actors["counters"].add.call_one(1) == 1
            await lease.release()
            async with asyncio.timeout(5):
                async with ma.cluster().place(ma.Demand([ma.Bundle(cpus=4)])):
                    pass


async def test_what_they_spawn_on_other_hosts_lives_as_they_do() -> None:
    async with running_agent(name="a", config=CONFIG) as a, running_agent(name="b", config=CONFIG) as b:
        async with ma.attach(a.url, b.url, token=TOKEN, config=CONFIG) as hosts:
            counters = await (await hosts.slice(hosts=0).spawn_procs(detached="train")).spawn("counters", Counter)
            child = await counters.spawn_on.call_one(hosts.slice(hosts=1))
        await asyncio.sleep(0.1)
        assert is_alive(child)
        async with ma.attach(a.url, b.url, token=TOKEN, config=CONFIG):
            lease = await ma.cluster().adopt("train")
            assert await lease.actors["counters"].ask_child.call_one() == 101
            await lease.release()
            async with asyncio.timeout(5):
                while is_alive(child):
                    await asyncio.sleep(0.01)
            assert await ma.cluster().detached() == []


async def test_what_is_too_large_to_be_kept_cannot_be_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_async.mesh.detachment.MOST_KEPT", 100)
    async with running_agent(config=CONFIG) as agent:
        async with ma.attach(agent.url, token=TOKEN, config=CONFIG) as hosts:
            await (await hosts.spawn_procs(detached="train")).spawn("counters", Counter, 5)
        async with ma.attach(agent.url, token=TOKEN, config=CONFIG):
            lease = await ma.cluster().adopt("train")
            assert await lease.actors["counters"].add.call_one(1) == 6
            with pytest.raises(ma.Closed, match="too large to be kept with a detached lease"):
                await lease.actors["counters"].restart(0)
            await lease.release()
