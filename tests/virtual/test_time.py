"""Windows, heartbeats and leases, to the exact virtual second; and bounds that hold at every moment."""

import asyncio
import gc
import signal
from dataclasses import replace
from typing import Any

import pytest
import simulation
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma

WINDOW, HEARTBEAT = CONFIG.resume_window, CONFIG.heartbeat


class Member(ma.Actor):
    def __init__(self) -> None:
        self.running = self.most = self.yielded = 0

    @ma.endpoint
    async def wait(self, seconds: float) -> float:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return seconds

    @ma.endpoint
    async def count(self, limit: int, size: int = 0):
        for number in range(limit):
            self.yielded += 1
            yield number, bytes(size)

    @ma.endpoint
    async def facts(self) -> tuple[int, int]:
        return self.most, self.yielded

    @ma.endpoint
    async def ask(self, other: Any, seconds: float) -> float:
        return await other.wait.call_one(seconds)


def now() -> float:
    return asyncio.get_running_loop().time()


async def members(world: Simulation, per_host: int = 1) -> Any:
    procs = await world.hosts.spawn_procs({"gpus": per_host})
    return await procs.spawn("members", Member)


async def ended(call: "asyncio.Future[Any]") -> tuple[float, BaseException]:
    """When and how a call failed."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        await call
    return now(), caught.value


def test_a_cut_shorter_than_the_window_is_only_a_delay() -> None:
    async def main() -> None:
        async with cluster() as world:
            mesh = await members(world, 2)
            calls = [mesh.wait.call(second / 4) for second in range(40)]
            stream = [item async for item, _ in mesh.at(0).count.stream_one(5)]
            world.net.unreachable.add("agent0")
            world.net.cut("agent0")
            late = mesh.at(1).wait.call_one(0.5)
            await asyncio.sleep(WINDOW - HEARTBEAT - 0.6)
            assert not late.done() and stream == [0, 1, 2, 3, 4]
            world.net.heal("agent0")
            await asyncio.gather(*calls)
            assert await late == 0.5
            assert now() < WINDOW + 3
            await world.settle()
            world.assert_nothing_pending()

    simulation.run(main())


@pytest.mark.parametrize("is_silent", [False, True], ids=["cut", "silent"])
def test_past_the_window_every_pending_call_ends_in_host_lost(is_silent: bool) -> None:
    async def main() -> None:
        async with cluster() as world:
            mesh = await members(world, 2)
            await asyncio.sleep(5.25)
            session = world.session
            calls = [mesh.wait.call(100), mesh.at(0).wait.call_one(100), mesh.wait.broadcast(100)]
            stream = mesh.at(1).count.stream_one(1000, 100)
            assert (await anext(stream))[0] == 0
            await mesh.at(0).wait.call_one(0)
            heard = now()
            if is_silent:
                world.net.silence("agent0")
            else:
                world.net.unreachable.add("agent0")
                world.net.cut("agent0")
            at, error = await ended(calls[0])
            assert isinstance(error, ma.HostLost) and "host0" in str(error)
            assert WINDOW - HEARTBEAT < at - heard <= WINDOW + HEARTBEAT
            assert session.is_lost
            assert isinstance((await ended(calls[1]))[1], ma.HostLost) and now() == at
            with pytest.raises(ma.HostLost):
                async for _ in stream:
                    pass
            assert now() == at and calls[2].done()
            with pytest.raises(ma.HostLost):
                await mesh.at(0).wait.call_one(0)
            await asyncio.sleep(3 * HEARTBEAT)
            assert all(proc.is_over for proc in world.procs.values()), "the agent has ended the procs of a lost client"
            assert not list(world.agents[0].guests)

    simulation.run(main())


def test_silence_of_three_heartbeats_gets_a_new_socket_and_loses_nothing() -> None:
    async def main() -> None:
        async with cluster() as world:
            mesh = await members(world)
            await asyncio.sleep(4.1)
            dials = world.net.dials
            world.net.silence("agent0")
            began = now()
            world.net.silent.clear()  # the next socket works
            call = mesh.at(0).wait.call_one(0.25)
            while world.net.dials == dials:
                await asyncio.sleep(0.01)
            assert 3 * HEARTBEAT - HEARTBEAT / 2 < now() - began < 4 * HEARTBEAT
            assert await call == 0.25
            assert now() - began < 4 * HEARTBEAT + 0.3
            await world.settle()
            assert world.net.dials == dials + 1
            world.assert_nothing_pending()

    simulation.run(main())


def test_a_guest_that_is_not_heard_expires_at_the_first_tick_past_its_window() -> None:
    async def main() -> None:
        async with cluster() as world:
            mesh = await members(world)
            call = mesh.at(0).wait.call_one(1000)
            await asyncio.sleep(7.0)
            (guest,) = world.agents[0].guests
            world.net.silence("agent0")
            await asyncio.sleep(HEARTBEAT / 2)  # what was heard is noted at a tick
            heard_at = guest.heard_at
            proc = next(iter(world.procs.values()))
            while not proc.is_over:
                await asyncio.sleep(0.001)
            lease = now() - heard_at
            assert WINDOW < lease <= WINDOW + HEARTBEAT / 2 + 0.002
            assert not list(world.agents[0].guests)
            with pytest.raises(ma.HostLost):
                await call

    simulation.run(main())


def test_a_guest_that_goes_on_pinging_never_expires() -> None:
    async def main() -> None:
        async with cluster() as world:
            mesh = await members(world)
            await asyncio.sleep(20 * WINDOW)
            assert await mesh.at(0).wait.call_one(0) == 0
            assert world.net.dials == 1

    simulation.run(main())


def test_a_proc_whose_agent_says_nothing_ends_itself() -> None:
    """P2, and not before."""

    async def main() -> None:
        async with cluster() as world:
            mesh = await members(world)
            await asyncio.sleep(WINDOW)
            call = mesh.at(0).wait.call_one(1000)
            agent = world.agents[0]
            last = now()
            agent.workers.renew_leases = lambda: None  # type: ignore[method-assign]
            at, error = await ended(call)
            assert isinstance(error, ma.ProcDied) and error.exit_code == 71
            assert WINDOW + 0.5 < at - last < WINDOW + WINDOW / 4 + 1.5

    simulation.run(main())


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_no_more_calls_are_under_way_than_the_window_allows() -> None:
    class Few(Member):
        max_concurrency = 2

    config = replace(CONFIG, window_calls=6)

    async def main() -> None:
        async with cluster(config=config) as world:
            procs = await world.hosts.spawn_procs({"gpus": 2})
            mesh = await procs.spawn("members", Few)
            calls = [mesh.at(n % 2).wait.call_one(0.5) for n in range(60)]
            casts = [mesh.wait.call(0.25) for _ in range(20)]
            for _ in range(20):
                await asyncio.sleep(0.31)
                for path in world.client._paths.values():
                    assert path.inflight <= 6
                for proc in world.procs.values():
                    assert proc.proc is not None
                    for instance in proc.proc.instances.values():
                        assert len(instance.mailbox) + len(instance.running) <= 6
            await asyncio.gather(*calls, *casts)
            assert [most for most, _ in await mesh.facts.call()] == [2, 2]
            world.assert_nothing_pending()

    simulation.run(main())


def test_bytes_in_flight_are_bounded_too() -> None:
    config = replace(CONFIG, window_bytes=10_000)

    class Taker(ma.Actor):
        @ma.endpoint
        async def take(self, data: bytes) -> int:
            await asyncio.sleep(0.01)
            return len(data)

    async def main() -> None:
        async with cluster(config=config) as world:
            procs = await world.hosts.spawn_procs()
            taker = await procs.spawn("taker", Taker)
            calls = [taker.take.call_one(bytes(3000)) for _ in range(50)]
            while not calls[-1].done():
                for path in world.client._paths.values():
                    assert path.inflight_bytes < 10_000 + 3200
                await asyncio.sleep(0.001)
            assert await asyncio.gather(*calls) == [3000] * 50
            world.assert_nothing_pending()

    simulation.run(main())


@pytest.mark.parametrize(("items", "size"), [(4, 0), (1000, 90)])
def test_a_generator_is_never_further_ahead_than_its_credit(items: int, size: int) -> None:
    config = replace(CONFIG, stream_items=items, stream_bytes=1000)

    async def main() -> None:
        async with cluster(config=config) as world:
            mesh = await members(world)
            taken = 0
            async for number, _ in mesh.at(0).count.stream_one(150, size):
                assert number == taken
                taken += 1
                if number % 3 == 0:
                    await asyncio.sleep(1)
                    _, yielded = await mesh.at(0).facts.call_one()
                    assert yielded <= taken + min(items, 1000 // max(size, 1) + 1) + 1
            assert taken == 150
            world.assert_nothing_pending()

    simulation.run(main())


def test_a_stream_may_be_much_longer_than_its_credit() -> None:
    """Its credit counted other bytes than its consumer gave back, and it stalled."""

    async def main() -> None:
        async with cluster(config=replace(CONFIG, stream_bytes=500)) as world:
            mesh = await members(world)
            assert len([item async for item in mesh.at(0).count.stream_one(1000)]) == 1000

    simulation.run(main())


# -- between hosts ---------------------------------------------------------------------------------------------------


def test_agents_that_cannot_reach_each_other_yet_only_take_longer() -> None:
    async def main() -> None:
        async with cluster(2) as world:
            mesh = await members(world)
            world.net.unreachable.add("agent1")
            call = mesh.at(0).ask.call_one(mesh.at(1), 0.5)
            await asyncio.sleep(WINDOW / 2)
            assert not call.done()
            world.net.heal("agent1")
            assert await call == 0.5
            await world.settle()
            world.assert_nothing_pending()

    simulation.run(main())


def test_a_first_handshake_that_breaks_off_is_done_again() -> None:
    for at in range(0, 500, 35):

        async def main(at: int = at) -> None:
            async with cluster(2) as world:
                mesh = await members(world)
                before = len(world.net.wires["agent1"])
                call = mesh.at(0).ask.call_one(mesh.at(1), 0.5)
                while len(world.net.wires["agent1"]) == before:
                    await asyncio.sleep(0)
                wire = world.net.wires["agent1"][-1]
                (wire if at % 2 else wire.peer).cut(at // 2)
                assert await call == 0.5
                await world.settle()
                world.assert_nothing_pending()

        simulation.run(main())


@pytest.mark.parametrize("dialler", ["client", "agent0"])
def test_a_resume_that_breaks_off_at_any_byte_is_done_again(dialler: str) -> None:
    """What either end said of what it has received may be half said, or said to nobody."""
    for at in range(0, 560, 13):

        async def main(at: int = at) -> None:
            async with cluster(2) as world:
                mesh = await members(world)
                assert await mesh.at(0).ask.call_one(mesh.at(1), 0.5) == 0.5
                one, other = mesh.at(0), mesh.at(1)
                calls = [other.wait.call_one(0.1 * n) if dialler == "client" else one.ask.call_one(other, 0.1 * n)
                         for n in range(10)]  # fmt: skip
                await asyncio.sleep(0.35)
                before = len(world.net.wires["agent1"])
                for end in world.net.dialled(dialler, "agent1"):
                    end.cut()
                while len(world.net.wires["agent1"]) == before:
                    await asyncio.sleep(0)
                wire = world.net.wires["agent1"][-1]
                (wire if at % 2 else wire.peer).cut(at // 2)
                assert await asyncio.gather(*calls) == [0.1 * n for n in range(10)]
                await world.settle()
                assert wire.is_closing() or at > 400, "it was cut at a byte that never came"
                world.assert_nothing_pending()

        simulation.run(main())


def test_who_is_reached_but_cannot_answer_is_lost() -> None:
    """Host 0 reaches host 1, which does not reach host 0: nobody waits for ever."""

    async def main() -> None:
        async with cluster(2) as world:
            mesh = await members(world)
            world.net.unreachable.add("agent0")  # the client is there already
            began = now()
            call = mesh.at(0).ask.call_one(mesh.at(1), 0.5)
            with pytest.raises(ma.HostLost, match="host1"):
                await call
            assert now() - began <= 2 * WINDOW
            assert await mesh.at(1).wait.call_one(0) == 0
            world.net.heal("agent0")
            assert await mesh.at(0).ask.call_one(mesh.at(1), 0.5) == 0.5
            await world.settle()
            world.assert_nothing_pending()

    simulation.run(main())


def test_who_listens_where_a_lost_host_did_is_not_taken_for_it() -> None:
    """Host 0 dials host 1 for the first time while that is started again; its caller waited for ever."""

    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            mesh = await members(world)
            await world.crash(1)
            call = mesh.at(0).ask.call_one(mesh.at(1), 0.5)
            await asyncio.sleep(1)
            assert not call.done()
            await world.start_agent(1)
            began = now()
            with pytest.raises(ma.HostLost, match="host1"):
                await call
            assert now() - began < 1.5
            assert await mesh.at(0).wait.call_one(0) == 0
            await world.settle()
            world.assert_nothing_pending()

    simulation.run(main())


@pytest.mark.parametrize("index", [0, 1])
def test_a_host_that_falls_silent_is_lost_to_the_others(index: int) -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            mesh = await members(world)
            asking, asked = mesh.at(1 - index), mesh.at(index)
            assert await asking.ask.call_one(asked, 0.1) == 0.1
            assert await asked.ask.call_one(asking, 0.1) == 0.1
            call = asking.ask.call_one(asked, 1000)
            await asyncio.sleep(1)
            world.net.silence(f"agent{index}")
            began = now()
            with pytest.raises(ma.HostLost, match=f"host{index}"):
                await call
            assert WINDOW - HEARTBEAT < now() - began < WINDOW + 2 * HEARTBEAT
            assert await asking.wait.call_one(0) == 0

    simulation.run(main())


def test_an_agent_that_is_ending_starts_nothing() -> None:
    """It started procs that it did not know of any more."""

    async def main() -> None:
        async with cluster() as world, ma.supervise(ma.ignore):
            await members(world)
            ending = asyncio.ensure_future(world.stop_agent(0))
            await asyncio.sleep(0.05)  # while it waits for its procs
            with pytest.raises(ma.HostLost, match="its agent is ending"):
                await members(world)
            await ending
            await world.settle()

    simulation.run(main())


def test_nothing_is_placed_where_an_agent_is_ending() -> None:
    """It took what it was asked for, and could start nothing on it: again and again, as long as procs took to end."""

    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            await members(world)
            demand = ma.Demand([ma.Bundle(cpus=0)], prefers=("host0",))
            async with ma.cluster().place(demand) as placement:
                assert placement.spots[0].host.name == "host0"
            ending = asyncio.ensure_future(world.stop_agent(0))
            await asyncio.sleep(0.05)  # while it waits for its procs
            async with ma.cluster().place(demand) as placement:
                assert placement.spots[0].host.name == "host1"
                await placement.spawn_procs()
            await ending
            await world.settle()

    simulation.run(main())


@pytest.mark.parametrize("is_awaited", [True, False], ids=["mesh", "actors"])
def test_a_spawn_of_which_a_host_is_lost_leaves_nothing_on_others(is_awaited: bool) -> None:
    """Who awaits it in one go has no mesh in hand when that raises."""

    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            world.freeze(1)
            procs = world.hosts.spawn_procs()
            mesh = procs.spawn("members", Member)
            await asyncio.sleep(1)
            assert len(world.agents[0].workers.living()) == 1
            with pytest.raises(ma.HostLost, match="host1"):
                await (procs if is_awaited else mesh)
            assert not world.agents[0].workers.living()
            world.thaw(1)
            await world.settle()
            assert not world.agents[1].workers.living()

    simulation.run(main())


def test_a_proc_that_does_not_start_anew_ends_no_others() -> None:
    async def main() -> None:
        async with cluster(2) as world, ma.supervise(ma.ignore):
            procs = await world.hosts.spawn_procs()
            mesh = await procs.spawn("members", Member)
            world.freeze(1)
            with pytest.raises(ma.HostLost, match="host1"):
                await procs.restart(1)
            assert len(world.agents[0].workers.living()) == 1
            world.thaw(1)
            async with asyncio.timeout(60):
                while len(ma.cluster().hosts.hosts) < 2:
                    await asyncio.sleep(1)
            await procs.restart(1)
            assert await procs is procs
            assert list(await mesh.wait.call(0)) == [0, 0]
            await world.settle()

    simulation.run(main())


def test_a_spawn_on_hosts_that_are_lost_together_fails_once() -> None:
    """What the second one answered was looked at by nobody."""

    async def main() -> None:
        async with cluster(2) as world:
            failed: list[ma.Failure] = []

            async def note(failure: ma.Failure) -> bool:
                failed.append(failure)
                return True

            async with ma.supervise(note):
                procs = world.hosts.spawn_procs()
                for index in (0, 1):
                    world.net.unreachable.add(f"agent{index}")
                    world.net.cut(f"agent{index}")
                with pytest.raises(ma.HostLost):
                    await procs
                await world.settle()
                assert not [str(failure) for failure in failed if "request spawn" in str(failure)]
                gc.collect()

    simulation.run(main())


# -- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_every_call_of_a_dead_proc_ends_once_and_the_others_go_on(seed: int) -> None:
    async def main() -> None:
        async with cluster(1 + seed % 2, latency=0.002, seed=seed) as world:
            async with ma.supervise(ma.ignore):
                mesh = await members(world, 2)
                calls = [mesh.at(n % mesh.size).wait.call_one(n * 0.01) for n in range(40)]
                casts = [mesh.wait.call(n * 0.02) for n in range(10)]
                others = [mesh.at(1).ask.call_one(mesh.at(0), n * 0.02) for n in range(10)]
                await asyncio.sleep(0.1)
                dead = mesh._members[0]
                world.procs[dead].kill(signal.SIGKILL)
                began = now()
                outcomes = await asyncio.gather(*calls, *casts, *others, return_exceptions=True)
                assert now() - began < 1
                failed = [o for o in outcomes if isinstance(o, BaseException)]
                assert failed and all(isinstance(error, ma.ProcDied) for error in failed), failed
                assert all(not isinstance(o, BaseException) for n, o in enumerate(outcomes[:40]) if n % mesh.size)
                with pytest.raises(ma.ProcDied):
                    await mesh.at(0).wait.call_one(0)
                assert await mesh.at(1).wait.call_one(0) == 0
                await world.settle()
                world.assert_nothing_pending()

    simulation.run(main(), seed)


def test_a_reference_faster_than_the_message_that_creates_its_actor_waits_for_it() -> None:
    """The spawn goes over a link that is cut; the reference reaches another host, whose call gets there first."""

    async def main() -> None:
        async with cluster(hosts=2) as world:
            procs = await world.hosts.spawn_procs({"gpus": 1})
            near = await procs.slice(hosts=0).spawn("near", Member)
            far = await procs.slice(hosts=1).spawn("far", Member)
            assert await near.ask.call_one(far, 0) == 0  # the agents know each other
            world.net.unreachable.add("agent1")
            world.net.wires["agent1"][0].cut()  # the client's link; that between the agents stays
            late = procs.slice(hosts=1).spawn("late", Member)
            call = near.ask.call_one(late, 0.25)
            await asyncio.sleep(WINDOW / 2)
            assert not call.done()
            world.net.heal("agent1")
            assert await call == 0.25
            await late
            await world.settle()
            world.assert_nothing_pending()

    simulation.run(main())


def test_a_call_to_an_actor_that_never_was_waits_no_longer_than_the_window() -> None:
    async def main() -> None:
        async with cluster(hosts=2) as world:
            procs = await world.hosts.spawn_procs({"gpus": 1})
            near = await procs.slice(hosts=0).spawn("near", Member)
            far = await procs.slice(hosts=1).spawn("far", Member)
            began = now()
            [proc] = [member.proc for member in world.procs.values() if member.proc.info.rank == 1]
            proc.instances.clear()
            proc.router.targets.clear()
            when, error = await ended(near.ask.call_one(far, 0))
            assert "has no such actor" in str(error)
            assert WINDOW <= when - began < WINDOW + 1

    simulation.run(main())
