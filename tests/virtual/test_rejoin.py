"""Hosts that are cut off or frozen, to the exact virtual second: suspect, lost, and back again, empty.

Whoever was suspect only has lost nothing. Whoever was lost comes back by itself, without anything of before, and what
is started there then works, whoever calls it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import simulation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma
from monarch_async.ids import host_of
from monarch_async.mesh.domain import active_domain

WINDOW, HEARTBEAT = CONFIG.resume_window, CONFIG.heartbeat


class Member(ma.Actor):
    def __init__(self) -> None:
        self.calls = 0

    @ma.endpoint
    async def echo(self, value: int) -> int:
        self.calls += 1
        return value

    @ma.endpoint
    async def wait_forever(self) -> None:
        await asyncio.Event().wait()

    @ma.endpoint
    async def ask(self, other: "Member", value: int) -> int:
        return await other.echo.call_one(value)

    @ma.endpoint
    async def why_not(self, other: "Member") -> str:
        try:
            await other.echo.call_one(0)
        except ma.Error as error:
            return type(error).__name__
        return ""


class Log:
    """What becomes of hosts, and when."""

    def __init__(self) -> None:
        self.began = now()
        self.events: list[tuple[float, ma.HostEvent]] = []
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for event in ma.cluster().events():
            self.events.append((now() - self.began, event))

    def of(self, name: str) -> list[str]:
        return [event.kind for _, event in self.events if event.host.name == name]

    def when(self, name: str, kind: str) -> float:
        return next(at for at, event in self.events if (event.host.name, event.kind) == (name, kind))


def now() -> float:
    return asyncio.get_running_loop().time()


async def wait_for(log: Log, name: str, *kinds: str) -> None:
    async with asyncio.timeout(60):
        while tuple(log.of(name)[-len(kinds) :]) != kinds:
            await asyncio.sleep(0.05)


async def members_on(hosts: ma.HostMesh) -> Member:
    return await (await hosts.spawn_procs()).spawn("members", Member)


async def check_all_pairs(members: Any) -> None:
    """Everybody reaches everybody, at once."""
    async with asyncio.timeout(60):
        assert list(await members.echo.call(7)) == [7] * members.size
        for here in range(members.size):
            for there in range(members.size):
                assert await members.at(here).ask.call_one(members.at(there), 10 * here + there) == 10 * here + there


def test_shorter_than_the_window_nothing_happens() -> None:
    async def main() -> None:
        async with cluster(2) as world:
            members, log = await members_on(world.hosts), Log()
            pending = [members.at(1).echo.call_one(n) for n in range(5)]
            world.freeze(1)
            pending += [members.at(1).echo.call_one(n) for n in range(5, 10)]
            through = members.at(0).ask.call_one(members.at(1), 10)
            await asyncio.sleep(WINDOW - 1.5 * HEARTBEAT)
            assert log.of("host1") == ["up", "suspect"]
            assert 3 * HEARTBEAT < log.when("host1", "suspect") <= 4 * HEARTBEAT
            assert [host.name for host in ma.cluster().hosts.hosts] == ["host0", "host1"]
            world.thaw(1)
            assert await asyncio.gather(*pending, through) == list(range(11))
            await wait_for(log, "host1", "suspect", "up")
            assert log.events[-1][1].was == "suspect"
            assert log.of("host0") == ["up"]
            assert [event.version for _, event in log.events[2:]] == [5, 6]
        await log.task

    simulation.run(main(), 0, True)


@pytest.mark.parametrize("is_whole", [False, True], ids=["agent", "machine"])
def test_frozen_for_longer_it_is_lost_and_comes_back_empty(is_whole: bool) -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            members, log = await members_on(world.hosts), Log()
            old, other = members.at(1), members.at(0)
            assert await other.ask.call_one(old, 1) == 1
            assert await old.ask.call_one(other, 1) == 1
            waiting = old.wait_forever.call_one()
            hosts = ma.cluster().hosts
            world.freeze(1, is_whole)
            with pytest.raises(ma.HostLost, match="no sign of life"):
                await waiting
            assert WINDOW < log.when("host1", "lost") <= WINDOW + 1.5 * HEARTBEAT
            assert [host.name for host in ma.cluster().hosts.hosts] == ["host0"]
            with pytest.raises(ma.HostLost):
                await old.echo.call_one(2)
            assert await other.why_not.call_one(old) == "HostLost"
            await asyncio.sleep(7)
            world.thaw(1)
            thawed = now() - log.began
            await wait_for(log, "host1", "suspect", "lost", "joining", "up")
            assert log.events[-1][0] - thawed < 6  # it is dialled every five seconds
            assert ma.cluster().hosts.identity == hosts.identity  # the agent's process is the same: so is its id
            assert not world.agents[1].workers.living()
            new = await members_on(world.hosts)
            await check_all_pairs(new)
            for _ in range(2):
                with pytest.raises(ma.Lost):
                    await old.echo.call_one(3)
            assert await other.why_not.call_one(old) in ("HostLost", "ProcDied")
            assert await new.at(1).why_not.call_one(old) == "ProcDied"
            assert await new.at(1).ask.call_one(other, 4) == 4
            await world.settle()
            world.assert_nothing_pending()

    simulation.run(main(), 0, True)


def test_a_proc_of_a_lost_host_can_be_made_anew_when_that_is_back() -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            procs = await world.hosts.spawn_procs()
            members, log = await procs.spawn("members", Member), Log()
            world.freeze(1)
            await wait_for(log, "host1", "lost")
            with pytest.raises(ma.HostLost):
                await procs.restart(1)
            world.thaw(1)
            await wait_for(log, "host1", "joining", "up")
            await procs.restart(1)
            await check_all_pairs(members)
            await procs.stop()
            assert not world.agents[1].workers.living()

    simulation.run(main(), 0, True)


def test_a_client_that_alone_is_cut_off_disturbs_nobody_else() -> None:
    """Between the two agents nothing is lost: they need no new session."""

    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            members, log = await members_on(world.hosts), Log()
            await check_all_pairs(members)
            between = [agent._peers._sessions.copy() for agent in world.agents]
            world.net.lose("client", "agent1")
            world.net.lose("agent1", "client")
            await wait_for(log, "host1", "lost")
            await asyncio.sleep(2 * HEARTBEAT)
            assert not world.agents[1].workers.living()  # by their lease
            world.net.find("client", "agent1")
            world.net.find("agent1", "client")
            await wait_for(log, "host1", "joining", "up")
            await check_all_pairs(await members_on(world.hosts))
            assert [agent._peers._sessions for agent in world.agents] == between

    simulation.run(main(), 0, True)


def test_an_agent_that_was_started_anew_is_another_host_and_the_old_one_lost_at_once() -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            members, log = await members_on(world.hosts), Log()
            waiting = members.at(1).wait_forever.call_one()
            await asyncio.sleep(0)
            await world.crash(1)
            crashed = now()
            await asyncio.sleep(1.5)
            await world.start_agent(1)
            with pytest.raises(ma.HostLost, match="came back without our session"):
                await waiting
            assert now() - crashed < 3  # and not after the window
            await wait_for(log, "host1", "lost", "left", "joining", "up")
            ids = {event.host.id for _, event in log.events if event.host.name == "host1"}
            assert len(ids) == 2
            assert "anew" in next(event.why for _, event in log.events if event.kind == "left")
            with pytest.raises(ma.HostLost):
                await members.at(1).echo.call_one(1)
            assert await members.at(0).why_not.call_one(members.at(1)) == "HostLost"
            await check_all_pairs(await members_on(ma.cluster().hosts))

    simulation.run(main(), 0, True)


@pytest.mark.parametrize("how", ["crashed", "frozen", "cut off"])
def test_what_an_actor_spawned_ends_when_the_host_of_that_actor_is_given_up(how: str) -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            here, there = world.hosts.slice(hosts=0), world.hosts.slice(hosts=1)
            mine = await members_on(here)
            spawner = await (await there.spawn_procs()).spawn("spawner", Spawner)
            await spawner.spawn_on.call_one(here)
            assert len(world.agents[0].workers.living()) == 2
            ways = [("agent0", "agent1"), ("agent1", "agent0")]
            if how == "crashed":
                await world.crash(1)
            elif how == "frozen":
                world.freeze(1, is_whole=True)
            else:
                for way in ways:
                    world.net.lose(*way)
            await asyncio.sleep(WINDOW + 2 * HEARTBEAT)
            assert [worker.spec["mesh"] for worker in world.agents[0].workers.living()] == ["procs"]
            assert await mine.echo.call_one(1) == 1
            for way in ways:
                world.net.find(*way)
            world.thaw(1)

    simulation.run(main(), 0, True)


class Spawner(ma.Actor):
    @ma.endpoint
    async def spawn_on(self, hosts: ma.HostMesh) -> None:
        self.procs = await hosts.spawn_procs(name="owned")

    async def __supervise__(self, failure: ma.Failure) -> bool:
        return True


def test_actors_that_were_lost_with_their_host_are_told_nothing_of_hosts_any_more() -> None:
    async def main() -> None:
        async with cluster(3) as world, ma.supervise(ma.ignore):
            watchers = await (await world.hosts.slice(hosts=slice(0, 2)).spawn_procs()).spawn("watchers", Watcher)
            await watchers.hosts.call()
            sent: list[int] = []
            requests = active_domain().controller.requests  # type: ignore[attr-defined]
            post = requests.post

            def note(dst: int, operation: str, *arguments: object) -> None:
                if operation == "host_events":
                    sent.append(host_of(dst))
                post(dst, operation, *arguments)

            with mock.patch.object(requests, "post", note):
                world.freeze(1)
                await asyncio.sleep(WINDOW + 2 * HEARTBEAT)
                sent.clear()
                await ma.cluster().leave(world.hosts.slice(hosts=2))
                await asyncio.sleep(1)
            assert set(sent) == {world.hosts.hosts[0].id}
            world.thaw(1)

    simulation.run(main(), 0, True)


def test_an_actor_hears_of_hosts_that_come_back() -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            watcher = await (await world.hosts.slice(hosts=0).spawn_procs()).spawn("watcher", Watcher)
            log = Log()
            assert await watcher.hosts.call_one() == ["host0", "host1"]
            await watcher.follow.call_one()
            world.freeze(1)
            await wait_for(log, "host1", "lost")
            assert await watcher.hosts.call_one() == ["host0"]
            world.thaw(1)
            await wait_for(log, "host1", "joining", "up")
            assert await watcher.hosts.call_one() == ["host0", "host1"]
            kinds = [kind for kind, name in await watcher.seen.call_one() if name == "host1"]
            assert kinds == log.of("host1")
            assert await watcher.spread.call_one() == 2

    simulation.run(main(), 0, True)


class Watcher(ma.Actor):
    """Looks at the hosts from where it is, and uses them."""

    @ma.endpoint
    async def hosts(self) -> list[str]:
        await ma.cluster().fetch_hosts()
        return [host.name for host in ma.cluster().hosts.hosts]

    @ma.endpoint
    async def follow(self) -> None:
        self.events: list[tuple[str, str]] = []

        async def follow() -> None:
            async for event in ma.cluster().events():
                self.events.append((event.kind, event.host.name))

        self.task = asyncio.create_task(follow())

    async def teardown(self) -> None:
        if hasattr(self, "task"):
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    @ma.endpoint
    async def seen(self) -> list[tuple[str, str]]:
        return self.events

    @ma.endpoint
    async def spread(self) -> int:
        hosts = await ma.cluster().fetch_hosts()
        procs = await hosts.spawn_procs(name="spread")
        members = await procs.spawn("members", Member)
        count = len(list(await members.echo.call(1)))
        await procs.stop()
        return count


# -- whatever happens ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """One machine, or the way between two, is not there for a while."""

    kind: str
    machine: int
    other: int  # -1: the client
    seconds: float

    async def happen(self, world: Simulation) -> None:
        here, there = f"agent{self.machine}", f"agent{self.other}" if self.other >= 0 else "client"
        match self.kind:
            case "agent" | "machine":
                world.freeze(self.machine, self.kind == "machine")
                await asyncio.sleep(self.seconds)
                world.thaw(self.machine)
            case "silence":
                for way in ((here, there), (there, here)):
                    world.net.lose(*way)
                await asyncio.sleep(self.seconds)
                for way in ((here, there), (there, here)):
                    world.net.find(*way)
            case "refuse":
                world.net.refused |= {(here, there), (there, here)}
                for end in (*world.net.ends(here, there), *world.net.ends(there, here)):
                    end.cut()
                await asyncio.sleep(self.seconds)
                world.net.refused -= {(here, there), (there, here)}
            case _:
                raise AssertionError(self.kind)


TROUBLE = st.builds(
    Trouble,
    st.sampled_from(["agent", "machine", "silence", "refuse"]),
    st.integers(0, 2),
    st.integers(-1, 2),
    st.sampled_from([1.0, 4.0, 9.4, 10.2, 10.9, 12.0, 25.0]),
)
PLANS = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 3.0, 9.0]), TROUBLE), min_size=1, max_size=4)


async def go_through(world: Simulation, plan: list[tuple[float, Trouble]]) -> None:
    members, log = await members_on(world.hosts), Log()
    busy: list[int] = []

    async def talk(here: int, there: int) -> None:
        """Sessions between agents are there, and in use, when trouble begins."""
        while len(busy) < 300:
            busy.append(here)
            try:
                await members.at(here).ask.call_one(members.at(there), here)
            except ma.Error:
                pass
            await asyncio.sleep(0.7)

    talks = [asyncio.create_task(talk(n, (n + step) % 3)) for n in range(3) for step in (1, 2)]
    async with asyncio.TaskGroup() as group:
        for pause, trouble in plan:
            if trouble.other != trouble.machine:
                await asyncio.sleep(pause)
                group.create_task(trouble.happen(world))
    await asyncio.gather(*talks)
    async with asyncio.timeout(120):
        while {host.name for host in ma.cluster().hosts.hosts} != {"host0", "host1", "host2"}:
            await asyncio.sleep(0.01)
    new = await members_on(ma.cluster().hosts)  # the moment that they are back
    await check_all_pairs(new)
    check_events(log)
    await world.settle()
    world.assert_nothing_pending()
    living = sum(len(agent.workers.living()) for agent in world.agents)
    dead = sum(1 for _, event in log.events if event.kind == "lost")
    assert living <= 6 and (living == 6 or dead)


def check_events(log: Log) -> None:
    """M1, M2, M5, as a program sees them."""
    allowed = {
        "": {"joining", "up"},
        "joining": {"up", "lost"},
        "up": {"suspect", "lost"},
        "suspect": {"up", "lost"},
        "lost": {"joining"},
    }
    versions = [event.version for _, event in log.events]
    assert versions == sorted(set(versions))
    assert versions[-1] - versions[2] == len(versions) - 3  # after the three that it began with
    for name in ("host0", "host1", "host2"):
        before = ""
        for kind in log.of(name):
            assert kind in allowed[before], log.events
            before = kind


def check_plan(seed: int, plan: list[Any], latency: float) -> None:
    async def main() -> None:
        async with cluster(3, latency=latency, seed=seed, patience=3000.0) as world, ma.supervise(ma.ignore):
            await go_through(world, plan)

    simulation.run(main(), seed, True)


ANY = {"seed": st.integers(0, 1 << 16), "plan": PLANS, "latency": st.sampled_from([0.0, 0.004])}


@pytest.mark.slow
@given(**ANY)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happened_what_is_back_works(seed: int, plan: list[Any], latency: float) -> None:
    check_plan(seed, plan, latency)


@pytest.mark.slow
@pytest.mark.timeout(300)
@given(**ANY)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happened_what_is_back_works_many(seed: int, plan: list[Any], latency: float) -> None:
    check_plan(seed, plan, latency)
