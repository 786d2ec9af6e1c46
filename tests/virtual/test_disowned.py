"""Detached leases that have no owner, while who was it goes on: to the exact message."""

import asyncio
from typing import Any

import pytest
import simulation
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma
from monarch_async.ids import AGENT, address
from monarch_async.mesh import leases
from monarch_async.mesh.domain import active_domain


class Follower(ma.Actor):
    @ma.endpoint
    async def echo(self, value: int) -> int:
        return value

    @ma.endpoint
    async def follow(self) -> list[str]:
        """Until there is nobody who would tell more."""
        return [event.host.name async for event in ma.cluster().events()]


def run(test: Any, hosts: int = 1) -> None:
    async def main() -> None:
        async with cluster(hosts, split=in_reads) as world:
            await test(world)

    simulation.run(main(), 0, True)


def in_reads(data: bytes) -> list[bytes]:
    """As sockets deliver it: not all at once."""
    return [data[start : start + (256 << 10)] for start in range(0, len(data), 256 << 10)]


async def disown(world: Simulation) -> int:
    """Give up the only lease; return its id."""
    requests = active_domain().requests
    [lease] = world.agents[0].leases._leases
    for host in world.hosts.hosts:
        requests.post(address(host.id, AGENT), "lease_disown", lease.id)
        await requests.ask(address(host.id, AGENT), "leases")
    return lease.id


def test_who_has_given_a_lease_back_ends_nothing_of_it_by_leaving_and_is_told_nothing() -> None:
    async def test(world: Simulation) -> None:
        await world.hosts.spawn_procs(detached="kept")
        await disown(world)
        [worker] = world.agents[0].workers.living()
        assert (worker.owner, worker.root) == (0, 0)
        agent = address(world.hosts.hosts[0].id, AGENT)
        async with asyncio.timeout(10):
            await active_domain().requests.ask(agent, "emptied")  # as `drain` asks
            await active_domain().requests.ask(agent, "stop_all", "its client leaves", 1.0)
        assert world.agents[0].workers.living() == [worker]
        await (await ma.cluster().adopt("kept")).release()

    run(test)


def test_an_owner_from_before_stops_and_restarts_no_actor() -> None:
    """One that was frozen, and goes on before it has heard that another has adopted them."""

    async def test(world: Simulation) -> None:
        follower = await (await world.hosts.spawn_procs(detached="kept")).spawn("follower", Follower)
        [worker] = world.agents[0].workers.living()
        [proc] = world.procs.values()
        assert proc.proc is not None
        worker.root = worker.owner = 99 << 32 | 1
        proc.proc.change_root(worker.root)  # as the agent tells it when it is adopted
        for ending in (follower.stop, lambda: follower.restart(0)):  # type: ignore[attr-defined]
            with pytest.raises(ma.NotHolder, match=r"follower: this program is the owner .* no longer"):
                await ending()
        assert await follower.echo.call_one(1) == 1
        proc.proc.change_root(world.client.address)
        worker.root = worker.owner = world.client.address
        await (await ma.cluster().adopt("kept")).release()

    run(test)


def test_who_follows_hosts_in_a_proc_that_is_adopted_comes_to_an_end() -> None:
    async def test(world: Simulation) -> None:
        follower = await (await world.hosts.spawn_procs(detached="kept")).spawn("follower", Follower)
        following = follower.follow.call_one()
        await asyncio.sleep(1)
        await disown(world)
        lease = await ma.cluster().adopt("kept")
        async with asyncio.timeout(10):
            assert await following == ["host0"]
        await lease.release()

    run(test)


def test_an_adoption_that_is_cancelled_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Simulation) -> None:
        await world.hosts.spawn_procs(detached="kept")
        await disown(world)
        last = max(range(2), key=lambda index: world.agents[index].host)
        find = leases._find

        async def find_and_freeze(*arguments: Any) -> Any:
            found = await find(*arguments)
            world.freeze(last)
            return found

        monkeypatch.setattr(leases, "_find", find_and_freeze)
        adopting = asyncio.create_task(ma.cluster().adopt("kept"))
        await asyncio.sleep(1)
        adopting.cancel()
        await asyncio.gather(adopting, return_exceptions=True)
        world.thaw(last)
        monkeypatch.undo()
        await asyncio.sleep(1)
        assert [status.owner for status in await ma.cluster().detached()] == [""]
        await (await ma.cluster().adopt("kept")).release()

    run(test, hosts=2)


def test_who_cannot_read_what_the_actors_are_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Simulation) -> None:
        await (await world.hosts.spawn_procs(detached="kept")).spawn("follower", Follower)
        await disown(world)

        def fail(data: bytes) -> Any:
            raise ModuleNotFoundError("No module named 'theirs'")

        with monkeypatch.context() as patch:
            patch.setattr(leases, "unpack_actors", fail)
            with pytest.raises(ModuleNotFoundError):
                await ma.cluster().adopt("kept")
        await asyncio.sleep(1)
        assert [status.owner for status in await ma.cluster().detached()] == [""]
        lease = await ma.cluster().adopt("kept")
        assert await lease.actors["follower"].echo.call_one(1) == 1  # type: ignore[attr-defined]
        await lease.release()

    run(test)


def test_a_host_that_is_lost_keeps_nobody_from_detaching_on_others() -> None:
    async def test(world: Simulation) -> None:
        world.freeze(1)
        async with asyncio.timeout(2 * CONFIG.resume_window):
            await world.hosts.slice(hosts=0).spawn_procs(detached="kept")
        await (await ma.cluster().adopt("kept")).release()
        world.thaw(1)

    run(test, hosts=2)


class Heavy(ma.Actor):
    def __init__(self, weight: bytes) -> None:
        self.weight = len(weight)

    @ma.endpoint
    async def weigh(self) -> int:
        return self.weight


def test_what_makes_many_actors_anew_fits_into_the_answer_to_who_adopts_them() -> None:
    async def test(world: Simulation) -> None:
        procs = await world.hosts.spawn_procs(detached="kept")
        for number in range(6):
            await procs.spawn(f"heavy{number}", Heavy, bytes(3_000_000))
        await disown(world)
        async with asyncio.timeout(5):
            lease = await ma.cluster().adopt("kept")
        assert len(lease.actors) == 6
        await lease.actors["heavy0"].restart(0)
        assert await lease.actors["heavy0"].weigh.call_one() == 3_000_000  # type: ignore[attr-defined]
        with pytest.raises(ma.Closed):
            await lease.actors["heavy5"].restart(0)
        await lease.actors["heavy0"].stop()
        await lease.procs.spawn("heavy6", Heavy, bytes(3_000_000))  # in its place
        await disown(world)
        async with asyncio.timeout(5):
            lease = await ma.cluster().adopt("kept")
        await lease.actors["heavy6"].restart(0)
        await lease.release()

    run(test)
