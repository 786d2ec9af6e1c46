"""Placements on real hosts: procs in order with their ranks and devices, supervision, and books that return to zero."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.scheduler.events import Held

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITH_GPUS = ma.Resources(cpus=4, gpus=("0", "1", "2", "3"), memory=1 << 30, labels={"kind": "gpu"})
WITHOUT = ma.Resources(cpus=4, labels={"kind": "cpu"}, custom={"tokens": 2})
CONFIG = ma.Config(warn_after=0.2, stop_grace=1.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    """A host with four devices and one without any."""
    async with ma.local_hosts(2, resources=[WITH_GPUS, WITHOUT], config=CONFIG) as hosts:
        yield hosts


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def balanced(hosts: ma.HostMesh) -> AsyncIterator[None]:
    """After each test nobody holds anything: not in the client's books, not in the agents', and no proc is left."""
    yield
    await wait_balanced(hosts)


async def wait_balanced(hosts: ma.HostMesh) -> None:
    async with asyncio.timeout(5):
        while True:
            books, status = await ma.cluster().holdings(), await hosts.status()
            left = [*books.waiting, *[h for host in books.hosts for h in host.holdings]]
            left += [row for host in status.hosts for row in (*host.placed.reservations, *host.procs)]
            if not left:
                break
            await asyncio.sleep(0.01)
    for host in books.hosts:
        assert host.free == host.total
        assert host.elsewhere == Held()


class Probe(ma.Actor):
    """Says what it was given; places; dies."""

    @ma.endpoint
    async def seen(self) -> dict[str, str]:
        import environ_seen

        return environ_seen.SEEN

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def place_inside(self, demand: ma.Demand) -> tuple[int, list[str], str, int]:
        async with ma.cluster().place(demand) as placement:
            procs = await placement.spawn_procs(name="inner")
            probes = await procs.spawn("probes", Probe)
            ranks = [env["RANK"] for env in (await probes.seen.call()).values()]
            text = await ma.cluster().explain(demand)
            holdings = await ma.cluster().holdings()
            return placement.id, ranks, text, sum(len(host.holdings) for host in holdings.hosts)

    @ma.endpoint
    async def place_and_keep(self, demand: ma.Demand) -> int:
        self.placement = await ma.cluster().place(demand)
        await self.placement.spawn_procs(name="kept")
        return self.placement.id

    @ma.endpoint
    async def place_and_wait(self, demand: ma.Demand) -> str:
        try:
            async with ma.cluster().place(demand):
                await asyncio.sleep(60)
        except ma.Preempted as error:
            return f"preempted by {error.by}"
        return "never"

    @ma.endpoint
    async def place_in_vain(self, demand: ma.Demand) -> None:
        await ma.cluster().place(demand)


def demand(count: int = 1, **changes: Any) -> ma.Demand:
    bundle = {key: changes.pop(key) for key in ("cpus", "gpus", "memory", "custom") if key in changes}
    return ma.Demand([ma.Bundle(**bundle)] * count, **changes)


async def probes_on(placement: ma.Placement, *args: Any, **kwargs: Any) -> Any:
    procs = await placement.spawn_procs(*args, **kwargs)
    return await procs.spawn("probes", Probe)


async def held(hosts: ma.HostMesh) -> list[Held]:
    """What the agents' books say is held, by host."""
    return [host.placed.held for host in (await hosts.status()).hosts]


# -- procs -------------------------------------------------------------------------------------------------------------


async def test_procs_come_in_the_order_of_bundles_and_know_their_ranks_before_any_import(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(3, gpus=1, axis="stages")) as placement:
        probes = await probes_on(placement)
        assert probes.extent == {"stages": 3}
        seen = [dict(env) for env in (await probes.seen.call()).values()]
        assert [(spot.host.name, spot.gpus) for spot in placement.spots] == [
            ("host0", ("0",)), ("host0", ("1",)), ("host0", ("2",)),
        ]  # fmt: skip
    for rank, env in enumerate(seen):
        assert env["CUDA_VISIBLE_DEVICES"] == str(rank)
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(rank), "3")
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (str(rank), "3")
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["MASTER_PORT"] == seen[0]["MASTER_PORT"]
    with socket.socket() as rank_0:
        rank_0.bind(("127.0.0.1", int(seen[0]["MASTER_PORT"])))


async def test_the_devices_of_a_bundle_are_divided_among_its_procs(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(2, gpus=2)) as placement:
        probes = await probes_on(placement, {"gpus": 2})
        assert probes.extent == {"bundles": 2, "gpus": 2}
        seen = (await probes.seen.call()).values()
        assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["0", "1", "2", "3"]
        with pytest.raises(ma.BadDemand, match="bundle 0 of placement has 2 gpus: they do not divide among 3 procs"):
            placement.spawn_procs({"gpus": 3})
        with pytest.raises(ma.ExtentError, match="'bundles' is taken"):
            placement.spawn_procs({"bundles": 2})


@pytest.mark.slow
async def test_a_share_of_a_device_is_had_by_all_procs_of_its_bundle(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(2, gpus=0.5)) as placement:
        assert [spot.gpus for spot in placement.spots] == [("0",), ("0",)]
        seen = (await (await probes_on(placement, {"procs": 2})).seen.call()).values()
        assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["0"] * 4


async def test_who_has_no_device_sees_none_and_hosts_without_any_are_left_alone(
    hosts: ma.HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ma.cluster().place(demand(2, strategy="strict_spread")) as placement:
        seen = (await (await probes_on(placement)).seen.call()).values()
        by_host = {spot.host.name: env for spot, env in zip(placement.spots, seen, strict=True)}
        assert by_host["host0"]["CUDA_VISIBLE_DEVICES"] == ""
        assert by_host["host1"].get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")
        assert [env["LOCAL_RANK"] for env in seen] == ["0", "0"]
        assert [env["LOCAL_WORLD_SIZE"] for env in seen] == ["1", "1"]
        assert {env["MASTER_ADDR"] for env in seen} == {"127.0.0.1"}


async def test_what_is_asked_for_by_hand_wins(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(2, gpus=1)) as placement:
        probes = await probes_on(placement, env=lambda point: {"RANK": f"r{point['bundles']}", "MORE": "x"})
        seen = (await probes.seen.call()).values()
        assert [(env["RANK"], env["MORE"], env["WORLD_SIZE"]) for env in seen] == [("r0", "x", "2"), ("r1", "x", "2")]


@pytest.mark.slow
async def test_meshes_of_some_bundles_have_ranks_and_a_meeting_place_of_their_own(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(4, strategy="spread")) as placement:
        names = [spot.host.name for spot in placement.spots]
        last = [index for index, name in enumerate(names) if name == "host1"]
        meshes = [
            placement.spawn_procs(name="all"),
            placement.spawn_procs(name="last", bundles=last),
            placement.spawn_procs(name="first", bundles=[3, 0]),
        ]
        ports = []
        for mesh in meshes:
            seen = (await (await mesh.spawn("probes", Probe)).seen.call()).values()
            assert [env["RANK"] for env in seen] == [str(rank) for rank in range(len(seen))]
            ports.append(seen[0]["MASTER_PORT"])
        assert len(set(ports)) == 3
        assert meshes[1].addresses[0] >> 32 == placement.spots[last[0]].host.id
        for wrong in ([4], [], [-1], ["0"]):
            with pytest.raises(ma.BadCall, match="bundles 0 to 3"):
                placement.spawn_procs(bundles=wrong)  # type: ignore[arg-type]


async def test_wrong_arguments_start_nothing(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand()) as placement:
        with pytest.raises(ma.BadCall, match="start="):
            placement.spawn_procs(start="thread")
        with pytest.raises(ma.BadCall, match="name="):
            placement.spawn_procs(name="")
        with pytest.raises(ma.BadCall, match="one stands there twice"):
            placement.spawn_procs(bundles=[0, 0])
        assert not (await hosts.status()).hosts[0].procs
    with pytest.raises(ma.BadDemand, match=r"expected a monarch_async\.Demand"):
        ma.cluster().place({"cpus": 1})  # type: ignore[arg-type]


# -- what is held, and until when --------------------------------------------------------------------------------------


async def test_the_agents_know_what_is_held_and_procs_without_a_placement_hold_nothing(hosts: ma.HostMesh) -> None:
    free = await hosts.spawn_procs({"gpus": 2}, name="free")
    assert await held(hosts) == [Held(), Held()]
    async with ma.cluster().place(demand(2, cpus=1.5, gpus=0.25, memory=1000)):
        assert await held(hosts) == [Held(30_000, (("0", 5_000),), 2000), Held()]
    async with ma.cluster().place(demand(cpus=0, custom={"tokens": 1.5})):
        assert await held(hosts) == [Held(), Held(0, (), 0, (("tokens", 15_000),))]
    assert await held(hosts) == [Held(), Held()]
    await free.stop()


async def test_the_block_ends_its_procs_and_then_gives_back(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(4, cpus=1, gpus=1)) as placement:
        pids = (await (await probes_on(placement)).pid.call()).values()
        others = await hosts.slice(hosts=1).spawn_procs(name="others")  # spawned in it, so it ends with it
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert others.allocation is None or others.allocation.is_stopped
    with pytest.raises(ma.Closed, match="placement placement is closed: it was released"):
        placement.spawn_procs()
    await placement.release()  # twice is fine


async def test_who_waits_for_a_placement_gets_it_when_the_procs_of_the_former_are_gone(hosts: ma.HostMesh) -> None:
    holder = await ma.cluster().place(demand(4, cpus=1, gpus=1))
    pids = (await (await probes_on(holder)).pid.call()).values()
    waiting = asyncio.ensure_future(_await(ma.cluster().place(demand(4, cpus=1, gpus=1))))
    await asyncio.sleep(0)
    assert [waiter.name for waiter in (await ma.cluster().holdings()).waiting] == ["placement"]
    await holder.release()
    placement = await waiting
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    await placement.release()


async def _await(request: Any) -> ma.Placement:
    return await request


async def test_a_body_that_raises_gives_back(hosts: ma.HostMesh) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ma.cluster().place(demand(2)) as placement:
            await placement.spawn_procs()
            raise ZeroDivisionError


async def test_a_body_that_is_cancelled_gives_back(hosts: ma.HostMesh) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with ma.cluster().place(demand(2)) as placement:
            await placement.spawn_procs()
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await held(hosts) == [Held(), Held()]


async def test_a_release_that_is_cancelled_gives_back_all_the_same(hosts: ma.HostMesh) -> None:
    placement = await ma.cluster().place(demand(4, gpus=1))
    pids = (await (await probes_on(placement)).pid.call()).values()
    release = asyncio.create_task(placement.release())
    await asyncio.sleep(0)
    release.cancel()
    with pytest.raises(asyncio.CancelledError):
        await release
    async with ma.cluster().place(demand(gpus=1)):  # the agents have ended the procs before
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_who_is_cancelled_while_he_waits_or_is_granted_holds_nothing(hosts: ma.HostMesh, turns: int) -> None:
    task = asyncio.create_task(_await(ma.cluster().place(demand(2))))
    for _ in range(turns):
        await asyncio.sleep(0.0005 if turns == 5 else 0)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(result, ma.Placement):  # it came first
        await result.release()
    else:
        assert isinstance(result, asyncio.CancelledError)


async def test_a_request_is_for_one_placement(hosts: ma.HostMesh) -> None:
    request = ma.cluster().place(demand())
    async with request:
        with pytest.raises(ma.Closed, match="it was used"):
            await request


# -- supervision -------------------------------------------------------------------------------------------------------


async def test_a_death_in_the_block_ends_its_body_and_is_raised_by_it(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.ProcDied, match="killed by SIGKILL"):
        async with ma.cluster().place(demand(2)) as placement:
            probes = await probes_on(placement)
            os.kill((await probes.pid.call()).values()[1], signal.SIGKILL)
            await asyncio.sleep(60)


@pytest.mark.slow
async def test_policies_around_the_block_handle_its_failures(hosts: ma.HostMesh) -> None:
    async with ma.supervise(ma.restart(1, backoff=0.01)), ma.cluster().place(demand(2, gpus=1)) as placement:
        probes = await probes_on(placement)
        before = (await probes.seen.call()).values()[1]
        os.kill((await probes.pid.call()).values()[1], signal.SIGKILL)
        async with asyncio.timeout(10):
            while True:
                try:
                    after = (await probes.seen.call()).values()[1]
                    break
                except ma.Lost:
                    await asyncio.sleep(0.01)
        assert {name: after[name] for name in ("RANK", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")} == {
            name: before[name] for name in ("RANK", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")
        }


# -- workers that place ------------------------------------------------------------------------------------------------


async def test_an_actor_places_too(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(1, labels={"kind": "cpu"})) as placement:
        probe = await probes_on(placement)
        inner = demand(2, gpus=2, cpus=0.5, name="inner")
        id, ranks, text, holdings = await probe.place_inside.call_one(inner)
        assert id != placement.id
        assert ranks == ["0", "1"]
        assert text.startswith("inner (2 bundles")
        assert "host0" in text
        assert holdings == 2
        assert not (await hosts.status()).hosts[0].placed.reservations
        with pytest.raises(ma.Unschedulable, match=r"inner .* can never be placed"):
            await probe.place_in_vain.call_one(demand(9, gpus=1, name="inner"))


async def test_an_actors_placement_ends_with_the_actor(hosts: ma.HostMesh) -> None:
    procs = await hosts.slice(hosts=1).spawn_procs(name="outer")
    probe = await procs.spawn("probe", Probe)
    await probe.place_and_keep.call_one(demand(2, gpus=1))
    assert (await held(hosts))[0] == Held(20_000, (("0", 10_000), ("1", 10_000)))
    await probe.stop()
    assert (await held(hosts))[0] == Held()
    await procs.stop()


@pytest.mark.slow
async def test_what_a_worker_holds_and_waits_for_ends_when_it_is_killed(hosts: ma.HostMesh) -> None:
    async with ma.supervise(ma.ignore):
        procs = await hosts.slice(hosts=1).spawn_procs(name="outer")
        probe = await procs.spawn("probe", Probe)
        await probe.place_and_keep.call_one(demand(2, gpus=1))
        waiting = probe.place_in_vain.call_one(demand(3, gpus=1))
        while not (await ma.cluster().holdings()).waiting:
            await asyncio.sleep(0.005)
        await procs.kill()
        with pytest.raises(ma.ProcDied):
            await waiting
        await wait_balanced(hosts)


async def test_an_actors_wait_that_is_cancelled_is_withdrawn(hosts: ma.HostMesh) -> None:
    procs = await hosts.slice(hosts=1).spawn_procs(name="outer")
    probe = await procs.spawn("probe", Probe)
    async with ma.cluster().place(demand(4, gpus=1)):
        waiting = probe.place_in_vain.call_one(demand(gpus=1))
        while not (await ma.cluster().holdings()).waiting:
            await asyncio.sleep(0.005)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not (await ma.cluster().holdings()).waiting
    await procs.stop()


# -- preemption, loans, spares -----------------------------------------------------------------------------------------


async def test_a_preemptible_block_is_ended_for_a_higher_priority(hosts: ma.HostMesh) -> None:
    inside, began = asyncio.Event(), time.monotonic()

    async def low() -> None:
        async with ma.cluster().place(demand(4, gpus=1, name="low", preemptible=True)) as placement:
            await placement.spawn_procs()
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(low())
    await inside.wait()
    async with ma.cluster().place(demand(2, gpus=1, name="high", priority=1, preempts=True)) as placement:
        assert len(placement.spots) == 2
        with pytest.raises(ma.Preempted, match="low was preempted by high"):
            await task
    assert time.monotonic() - began < 10


@pytest.mark.slow
async def test_an_actors_preemptible_block_is_ended_too(hosts: ma.HostMesh) -> None:
    procs = await hosts.slice(hosts=1).spawn_procs(name="outer")
    probe = await procs.spawn("probe", Probe)
    waiting = probe.place_and_wait.call_one(demand(4, gpus=1, preemptible=True))
    while not (await held(hosts))[0].gpus:
        await asyncio.sleep(0.005)
    async with ma.cluster().place(demand(gpus=1, name="high", priority=1, preempts=True)):
        assert (await waiting).startswith("preempted by high")
    await procs.stop()


@pytest.mark.slow
async def test_a_placement_without_a_block_that_is_preempted_fails_its_owner(hosts: ma.HostMesh) -> None:
    placement = None
    with pytest.raises(ma.Preempted, match="low was preempted by high"):
        async with ma.supervise(ma.escalate):
            placement = await ma.cluster().place(demand(4, gpus=1, name="low", preemptible=True))
            await placement.spawn_procs()
            async with ma.cluster().place(demand(gpus=1, name="high", priority=1, preempts=True)):
                await asyncio.sleep(60)
    assert placement is not None and placement.is_released


async def test_a_spare_goes_when_its_holder_says_so(hosts: ma.HostMesh) -> None:
    spare = await ma.cluster().place(demand(4, gpus=1, is_spare=True))
    asked: asyncio.Queue[str] = asyncio.Queue()
    spare.on_recall = asked.put_nowait
    waiting = asyncio.ensure_future(_await(ma.cluster().place(demand(gpus=1, name="real"))))
    assert (await asked.get()).startswith("real")
    assert not waiting.done()
    await spare.release()
    await (await waiting).release()


async def test_lent_cpus_are_had_by_others_until_they_are_reclaimed(hosts: ma.HostMesh) -> None:
    cpus = demand(4, cpus=1, hosts=["host1"])
    async with ma.cluster().place(cpus) as placement:
        placement.lend()
        assert (await held(hosts))[1] == Held()
        async with ma.cluster().place(cpus):
            placement.reclaim()
            assert (await held(hosts))[1] == Held(80_000)
            text = await ma.cluster().explain(cpus)
            assert "0 of 4 free" in text
        assert (await held(hosts))[1] == Held(40_000)


async def test_what_is_placed_within_a_placement_takes_nothing_more_and_ends_with_it(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(1, cpus=2, gpus=2)) as outer:
        inner = await ma.cluster().place(demand(2, gpus=1, within=(outer.id, 0)))
        assert [spot.gpus for spot in inner.spots] == [("0",), ("1",)]
        assert (await held(hosts))[0] == Held(20_000, (("0", 10_000), ("1", 10_000)))
        await inner.spawn_procs()
        await inner.release()


# -- what cannot be placed, and what waits -----------------------------------------------------------------------------


async def test_what_can_never_fit_is_refused_at_once_with_what_is_short(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.Unschedulable) as caught:
        async with ma.cluster().place(demand(3, gpus=2, name="trainers")):
            pass
    error = caught.value
    assert error.demand == "trainers (3 bundles of 1 cpu, 2 gpus; pack)"
    assert "6 gpus" in error.why
    assert "host0" in error.table and "host1" in error.table
    assert str(error).startswith(f"{error.demand} can never be placed: {error.why}\n")


async def test_who_waits_for_long_is_shown_who_holds_what(hosts: ma.HostMesh, caplog: pytest.LogCaptureFixture) -> None:
    trainers = ma.cluster().place(demand(2, gpus=1, name="trainers"))
    holder = await ma.cluster().place(demand(3, gpus=1, name="holder"))
    waiting = asyncio.ensure_future(_await(trainers))
    try:
        with caplog.at_level(logging.WARNING, "monarch_async"):
            async with asyncio.timeout(5):
                while not caplog.records:
                    await asyncio.sleep(0.02)
        text = caplog.records[0].getMessage()
        assert text.startswith("trainers (2 bundles")
        assert "holder" in text and ": 3 cpus, 3 gpus" in text
        assert not waiting.done()
    finally:
        await holder.release()
    await (await waiting).release()


async def test_a_task_of_a_block_that_ends_waits_for_nothing_any_more(hosts: ma.HostMesh) -> None:
    async with ma.cluster().place(demand(4, gpus=1)):
        waiting = asyncio.ensure_future(_await(ma.cluster().place(demand(gpus=1))))
        await asyncio.sleep(0)
    with pytest.raises(ma.Closed, match="the request for placement is closed: who asked has ended"):
        await waiting
