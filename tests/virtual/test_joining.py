"""Hosts that join, are drained, leave, and are had on request, while a program runs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import simulation
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma
from monarch_async.mesh.domain import active_domain


class Member(ma.Actor):
    @ma.endpoint
    async def echo(self, value: int) -> int:
        return value

    @ma.endpoint
    async def ask(self, other: "Member", value: int) -> int:
        return await other.echo.call_one(value)

    @ma.endpoint
    async def wait_forever(self) -> None:
        await asyncio.Event().wait()

    @ma.endpoint
    async def change(self, what: str, *arguments: Any) -> Any:
        """Ask for a change of hosts from here."""
        return await getattr(ma.cluster(), what)(*arguments)


async def members_on(hosts: ma.HostMesh, name: str = "procs") -> Member:
    return await (await hosts.spawn_procs(name=name)).spawn("members", Member)


def names() -> list[str]:
    return [host.name for host in ma.cluster().hosts.hosts]


def now() -> float:
    return asyncio.get_running_loop().time()


def run(test: Any, hosts: int = 1) -> None:
    async def main() -> None:
        async with cluster(hosts) as world:
            await test(world)

    simulation.run(main(), 0, True)


class Source:
    """Starts agents of the simulation."""

    def __init__(self, world: Simulation, most: int) -> None:
        self.world, self.left = world, most
        self.given: list[str] = []
        self.fails_at = -1
        self.delay = 0.0

    def declared(self) -> Sequence[tuple[ma.Resources, int]]:
        return [(simulation.RESOURCES, self.left)]

    async def request(self, count: int, resources: ma.Resources | None = None) -> Sequence[str]:
        if count > self.left:
            raise ma.BadDemand(f"{count} more: there are {self.left}")
        urls = []
        for _ in range(count):
            index = len(self.world.agents)
            self.left -= 1
            await asyncio.sleep(self.delay)
            if index != self.fails_at:
                await self.world.start_agent(index)
            self.given.append(self.world.url(index))
            urls.append(self.world.url(index))
        return urls

    async def give_back(self, host: ma.Host) -> None:
        self.given.remove(host.url)
        self.left += 1
        index = int(host.url.removeprefix("tcp://agent").removesuffix(":1"))
        await self.world.stop_agent(index)


used: list[Source] = []


def use(source: Source) -> None:
    """As `attach` with a source does."""
    used.append(source)
    roster = active_domain().roster
    roster._source = source  # type: ignore[attr-defined]
    roster._declare()  # type: ignore[attr-defined]


def test_a_host_joins_while_calls_are_in_flight() -> None:
    async def test(world: Simulation) -> None:
        first = await members_on(world.hosts)
        waiting = first.wait_forever.call_one()
        await world.start_agent(1)
        joined = await ma.cluster().join(world.url(1))
        assert names() == ["host0", "host1"]
        assert world.hosts.size == 1  # a mesh of hosts stays as it was made
        second = await members_on(joined)
        assert await first.ask.call_one(second, 1) == 1
        assert await second.ask.call_one(first, 2) == 2
        with pytest.raises(ValueError, match="already"):
            await ma.cluster().join(world.url(1))
        world.net.listeners["alias"] = world.net.listeners["agent1"]
        with pytest.raises(ValueError, match="already"):
            await ma.cluster().join("tcp://alias:1")
        assert await second.echo.call_one(3) == 3
        with pytest.raises(ma.LinkBroken):
            await ma.cluster().join(world.url(7))
        with pytest.raises(ValueError, match="bad address"):
            await ma.cluster().join("agent7")
        assert not waiting.done()
        waiting.cancel()
        both = await members_on(ma.cluster().hosts)
        assert list(await both.echo.call(3)) == [3, 3]

    run(test)


def test_a_drained_host_leaves_when_nothing_runs_there() -> None:
    async def test(world: Simulation) -> None:
        stays, goes = await members_on(world.hosts.slice(hosts=0)), world.hosts.slice(hosts=1)
        procs = await goes.spawn_procs()
        member = await procs.spawn("members", Member)
        assert await stays.ask.call_one(member, 1) == 1
        drained = asyncio.create_task(ma.cluster().drain(goes))
        await asyncio.sleep(100)
        assert not drained.done()
        assert await member.echo.call_one(2) == 2  # what is there goes on
        placing = asyncio.ensure_future(_place(ma.Demand([ma.Bundle(cpus=1)] * 2, strategy="strict_spread")))
        await asyncio.sleep(1)
        assert not placing.done()  # nothing new goes there, but it might stay after all
        await procs.stop()
        began = now()
        await drained
        assert now() - began < 1
        with pytest.raises(ma.Unschedulable):
            await placing
        assert names() == ["host0"]
        for _ in range(2):
            with pytest.raises(ma.HostLost, match="it was drained"):
                await member.echo.call_one(3)
        with pytest.raises(ma.RemoteError, match=r"HostLost|ProcDied"):
            await stays.ask.call_one(member, 4)
        with pytest.raises(ma.Lost):
            await goes.spawn_procs()
        assert await stays.echo.call_one(5) == 5
        back = await ma.cluster().join(world.url(1))
        assert await (await members_on(back)).ask.call_one(stays, 6) == 6

    run(test, hosts=2)


async def _place(demand: ma.Demand) -> None:
    async with ma.cluster().place(demand):
        pass


def test_a_deadline_stops_what_still_runs() -> None:
    async def test(world: Simulation) -> None:
        members = await members_on(world.hosts)
        went = world.agents[1]
        waiting = members.at(1).wait_forever.call_one()
        began = now()
        await ma.cluster().drain(world.hosts.slice(hosts=1).hosts[0], deadline=5.0)
        assert 5 <= now() - began < 6
        with pytest.raises(ma.Lost):
            await waiting
        assert not went.workers.living()
        assert await members.at(0).echo.call_one(1) == 1
        with pytest.raises(ma.BadCall, match="deadline"):
            await ma.cluster().drain(world.hosts, deadline=-1)

    run(test, hosts=2)


def test_a_drain_that_is_cancelled_opens_the_host_again() -> None:
    async def test(world: Simulation) -> None:
        await members_on(world.hosts)
        kinds: list[str] = []

        async def follow() -> None:
            async for event in ma.cluster().events():
                if event.host.name == "host1":
                    kinds.append(event.kind)

        following = asyncio.create_task(follow())
        drained = asyncio.create_task(ma.cluster().drain(world.hosts.slice(hosts=1)))
        await asyncio.sleep(1)
        drained.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drained
        await asyncio.sleep(0)
        assert kinds == ["up", "draining", "up"]
        demand = ma.Demand([ma.Bundle(cpus=1)] * 2, strategy="strict_spread")
        async with ma.cluster().place(demand) as placement:
            assert len(placement.spots) == 2
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(test, hosts=2)


def test_a_drain_that_is_cancelled_leaves_it_to_others_that_wait_for_the_same() -> None:
    async def test(world: Simulation) -> None:
        await members_on(world.hosts)
        one, other = world.hosts.slice(hosts=1), world.hosts.hosts[1]
        state = active_domain().controller.links.members.state  # type: ignore[attr-defined]
        drains = [asyncio.create_task(ma.cluster().drain(one)) for _ in range(2)]
        await asyncio.sleep(1)
        drains[0].cancel()
        await asyncio.sleep(1)
        assert state(other.id) == "draining"
        leaving = asyncio.create_task(ma.cluster().leave(one))
        await asyncio.sleep(0)
        drains[1].cancel()
        await asyncio.sleep(0.001)
        assert state(other.id) == "draining"
        await asyncio.gather(leaving, *drains, return_exceptions=True)
        assert names() == ["host0"]

    run(test, hosts=2)


def test_a_host_lost_while_it_is_drained_has_left() -> None:
    async def test(world: Simulation) -> None:
        async with ma.supervise(ma.ignore):
            await members_on(world.hosts)
            drained = asyncio.create_task(ma.cluster().drain(world.hosts.slice(hosts=1)))
            await asyncio.sleep(1)
            world.freeze(1)
            await drained
            assert names() == ["host0"]
            world.thaw(1)
            await asyncio.sleep(2 * CONFIG.resume_window)
            assert names() == ["host0"]  # nobody dials it

    run(test, hosts=2)


def test_leaving_stops_what_actors_have_started_there_too() -> None:
    async def test(world: Simulation) -> None:
        async with ma.supervise(ma.ignore):
            first = await members_on(world.hosts.slice(hosts=0))
            inner = await first.change.call_one("fetch_hosts")
            assert [host.name for host in inner.hosts] == ["host0", "host1"]
            spawner = await (await world.hosts.slice(hosts=0).spawn_procs()).spawn("spawner", Spawner)
            member = await spawner.spawn_on.call_one(world.hosts.slice(hosts=1))
            assert await member.echo.call_one(1) == 1
            await ma.cluster().leave(world.hosts.slice(hosts=1))
            assert not world.agents[1].workers.living()
            assert names() == ["host0"]
            await ma.cluster().leave(world.hosts.slice(hosts=1))  # twice is fine
            assert await first.echo.call_one(2) == 2

    run(test, hosts=2)


class Spawner(ma.Actor):
    @ma.endpoint
    async def spawn_on(self, hosts: ma.HostMesh) -> Member:
        self.procs = await hosts.spawn_procs(name="owned")
        return await self.procs.spawn("owned", Member)

    async def __supervise__(self, failure: ma.Failure) -> bool:
        return True


def test_growing_by_a_source_and_giving_back() -> None:
    async def test(world: Simulation) -> None:
        source = Source(world, most=3)
        use(source)
        with pytest.raises(ma.BadCall, match="positive"):
            await ma.cluster().grow(0)
        more = await ma.cluster().grow(2)
        assert names() == ["host0", "host1", "host2"]
        members = await members_on(ma.cluster().hosts)
        assert list(await members.echo.call(1)) == [1] * 3
        with pytest.raises(ma.BadDemand, match="there are 1"):
            await ma.cluster().grow(2)
        await ma.cluster().drain(more.slice(hosts=0), deadline=0.0)
        assert source.given == [world.url(2)]
        assert source.left == 2
        source.fails_at = len(world.agents) + 1
        with pytest.raises(ma.LinkBroken):
            await ma.cluster().grow(2)  # one of them does not listen: none is kept
        assert source.given == [world.url(2)]
        assert names() == ["host0", "host2"]
        source.fails_at = -1
        grown = await members.at(0).change.call_one("grow", 1)  # an actor asks
        assert grown.size == 1
        assert len(names()) == 3
        await members.at(0).change.call_one("leave", grown)
        assert source.given == [world.url(2)]
        assert (await ma.cluster().grow(2)).size == 2

    run(test)
    assert used[-1].given == []  # at the end of the program


def test_a_request_that_makes_no_sense_is_refused_and_harms_nobody() -> None:
    async def test(world: Simulation) -> None:
        member = await members_on(world.hosts)
        [proc] = world.procs.values()
        assert proc.proc is not None and proc.domain is not None
        requests = active_domain().requests
        async with asyncio.timeout(5):
            with pytest.raises(ma.Error, match="unknown request 'nonsense'"):
                await requests.ask(proc.proc.info.address, "nonsense")
            with pytest.raises(ma.Error, match="no request 'nonsense'"):
                await proc.domain.requests.ask(requests.own, "nonsense")
            with pytest.raises(ma.Error, match="bad request"):
                await proc.domain.requests.ask(requests.own, "where", 1, 2, 3)
            assert await member.echo.call_one(1) == 1
        assert world.net.dials == 1

    run(test)


def test_an_actor_is_told_why_a_host_cannot_join_as_the_client_is() -> None:
    async def test(world: Simulation) -> None:
        member = await members_on(world.hosts)
        for url, error, why in (
            (world.url(7), ma.LinkBroken, "connection refused"),
            (world.url(0), ValueError, "already"),
            ("agent7", ValueError, "bad address"),
        ):
            with pytest.raises(error, match=why):
                await member.change.call_one("join", url)

    run(test)


def test_an_actor_is_told_whatever_keeps_the_source_from_giving_hosts() -> None:
    async def test(world: Simulation) -> None:
        async def refuse(count: int, resources: ma.Resources | None = None) -> Sequence[str]:
            raise RuntimeError("no quota left")

        source = Source(world, most=1)
        source.request = refuse  # type: ignore[method-assign]
        use(source)
        member = await members_on(world.hosts)
        async with asyncio.timeout(10):
            with pytest.raises(ma.Error, match="RuntimeError: no quota left"):
                await member.change.call_one("grow", 1)

    run(test)


def test_a_program_that_ends_while_it_gives_a_host_back_gives_it_back() -> None:
    async def test(world: Simulation) -> None:
        source = Source(world, most=1)
        use(source)
        began = asyncio.Event()
        give_back = source.give_back

        async def dawdle(host: ma.Host) -> None:
            source.give_back = give_back  # type: ignore[method-assign]
            began.set()
            await asyncio.Event().wait()

        source.give_back = dawdle  # type: ignore[method-assign]
        leaving.append(asyncio.ensure_future(ma.cluster().leave(await ma.cluster().grow(1))))
        await began.wait()

    leaving: list[asyncio.Future[None]] = []
    run(test)
    assert leaving[0].cancelled()
    assert used[-1].given == []


def test_a_host_that_is_cut_off_while_others_are_still_dialled_joins_all_the_same() -> None:
    async def test(world: Simulation) -> None:
        await world.start_agent(1)
        await world.start_agent(2)
        world.net.lose("client", "agent2")
        controller = active_domain().controller  # type: ignore[attr-defined]
        joining = asyncio.create_task(controller.join_all([world.url(1), world.url(2)], simulation.TOKEN.encode()))
        await asyncio.sleep(1)
        world.net.cut("agent1")
        await asyncio.sleep(1)
        world.net.find("client", "agent2")
        await joining
        began = now()
        members = await members_on(ma.cluster().hosts)
        assert list(await members.echo.call(3)) == [3, 3, 3]
        assert now() - began < CONFIG.heartbeat

    run(test)


def test_what_is_declared_is_waited_for_and_had() -> None:
    async def test(world: Simulation) -> None:
        demand = ma.Demand([ma.Bundle(cpus=1)] * 2, strategy="strict_spread")
        with pytest.raises(ma.Unschedulable):
            await ma.cluster().place(demand)
        source = Source(world, most=1)
        use(source)
        placing = asyncio.ensure_future(ma.cluster().place(demand))
        await asyncio.sleep(1)
        assert not placing.done()
        await ma.cluster().grow(1)
        placement = await placing
        assert {host.name for host, _ in placement.spots} == {"host0", "host1"}
        await placement.release()

    run(test)


def test_without_a_source_there_is_nothing_to_grow_by() -> None:
    async def test(world: Simulation) -> None:
        with pytest.raises(ma.BadCall, match="no source of further hosts"):
            await ma.cluster().grow(1)

    run(test)


def test_who_follows_slowly_is_brought_up_to_date() -> None:
    """And the reading ends with the program."""

    async def main() -> None:
        async with cluster(2) as world:
            events = ma.cluster().events()
            first = [await anext(events) for _ in range(2)]
            assert [(event.kind, event.host.name) for event in first] == [("up", "host0"), ("up", "host1")]
            links = active_domain().controller.links  # type: ignore[attr-defined]
            for _ in range(3000):
                links.drain(world.hosts.hosts[1].id, "a test")
                links.reopen(world.hosts.hosts[1].id, "a test")
            assert max(len(watch._backlog) for watch in links._watches) <= 1024 + 4
            await asyncio.sleep(0)
            last = await anext(events)
            while last.version < links.members.version:
                last = await anext(events)
            assert last.kind == "up"
        kinds = [event.kind async for event in events]
        assert kinds == ["left", "left"]

    simulation.run(main(), 0, True)


def test_a_host_on_its_way_is_waited_for_whatever_else_is_asked_of_its_source() -> None:
    async def test(world: Simulation) -> None:
        source = Source(world, most=1)
        source.delay = 60.0
        use(source)
        placing = asyncio.ensure_future(ma.cluster().place(ma.Demand([ma.Bundle()] * 2, strategy="strict_spread")))
        growing = asyncio.ensure_future(ma.cluster().grow(1))
        await asyncio.sleep(1)
        with pytest.raises(ma.BadDemand, match="there are 0"):
            await ma.cluster().grow(1)
        await growing
        await (await placing).release()
        with pytest.raises(ma.Unschedulable):
            await ma.cluster().place(ma.Demand([ma.Bundle()] * 3, strategy="strict_spread"))

    run(test)


def test_where_no_host_is_left_it_is_said_which_were_lost_and_why() -> None:
    async def test(world: Simulation) -> None:
        async with ma.supervise(ma.ignore):
            world.freeze(0)
            world.freeze(1)
            async with asyncio.timeout(60):
                while len(active_domain().hosts):
                    await asyncio.sleep(1)
            no_sign = r"host host0, host1 lost: no sign of life for 1\d.\d s .*This program has no other host"
            for ask in (lambda: ma.cluster().hosts.slice(hosts=0), lambda: ma.cluster().hosts, ma.this_host):
                with pytest.raises(ma.HostLost, match=no_sign):
                    ask()
            with pytest.raises(ma.Closed, match="it has no host: host host0, host1 lost: no sign of life"):
                await ma.put(1)
            world.thaw(0)
            world.thaw(1)
            async with asyncio.timeout(60):
                while len(active_domain().hosts) < 2:
                    await asyncio.sleep(1)
            await ma.cluster().leave("host0")
            await ma.cluster().leave("host1")
            with pytest.raises(ma.Closed, match="it has no host: the last one, host1, has left: it was left"):
                ma.cluster().hosts.spawn_procs()

    run(test, hosts=2)
