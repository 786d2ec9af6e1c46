"""Where tasks and actors go: on real hosts, natively, with options as the facade checks them."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.ray.devices import NOSET_VARIABLE
from monarch_async.ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
)
from monarch_async.ray.group import Group, GroupRequest
from monarch_async.ray.living import node_id_of
from monarch_async.ray.options import ActorOptions, TaskOptions, check_actor_options, check_task_options
from monarch_async.ray.placement_group import PlacementGroup, PlacementGroupID
from monarch_async.ray.placing import Placing
from monarch_async.ray.strategies import (
    DoesNotExist,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITH_GPUS = ma.Resources(cpus=4, gpus=("0", "1"), labels={"kind": "gpu"})
WITHOUT = ma.Resources(cpus=4, custom={"tokens": 2})

Spawned = tuple[ProcMesh, Callable[[], Awaitable[None]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    """One with devices, one without any."""
    async with ma.local_hosts(2, resources=[WITH_GPUS, WITHOUT], config=ma.Config(stop_grace=1.0)) as hosts:
        yield hosts


@pytest_asyncio.fixture(loop_scope="module")
async def placing(hosts: ma.HostMesh) -> AsyncIterator[Placing]:
    placing = Placing(hosts)
    placing.start()
    yield placing
    await placing.aclose()
    await wait_free()


async def wait_free() -> None:
    """Nobody holds anything in the end."""
    async with asyncio.timeout(10):
        while True:
            holdings = await ma.cluster().holdings()
            if not holdings.waiting and not any(row.holdings for row in holdings.hosts):
                return
            await asyncio.sleep(0.01)


class Probe(ma.Actor):
    @ma.endpoint
    async def env(self) -> dict[str, str]:
        return dict(os.environ)


def task(**given: Any) -> TaskOptions:
    return check_task_options(given)


def actor(**given: Any) -> ActorOptions:
    return check_actor_options(given)


async def spawn(placing: Placing, options: ActorOptions, **more: Any) -> Spawned:
    return await placing.spawn_proc(options, "actor", more.pop("env", {}), None, **more)


async def end(spawned: Spawned) -> None:
    procs, give_back = spawned
    await procs.stop()
    await give_back()


def host_of(spawned: Spawned) -> str:
    procs = spawned[0]
    return procs.host_name(procs.addresses[0])


async def env_of(spawned: Spawned) -> dict[str, str]:
    return await (await spawned[0].spawn("probe", Probe)).env.call_one()


async def free(host: str, name: str = "cpus") -> float:
    row = next(row for row in (await ma.cluster().holdings()).hosts if row.name == host)
    return (row.free.cpus if name == "cpus" else sum(left for _, left in row.free.gpus)) / 10_000


def make_group(placing: Placing, *specs: dict[str, float], **more: Any) -> tuple[PlacementGroup, Group]:
    request = GroupRequest(os.urandom(16), specs, **more)
    placing.groups.create(request)
    return PlacementGroup(PlacementGroupID(request.id), specs), placing.groups.get(request.id)


def within(group: PlacementGroup, bundle: int = -1) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, bundle)


# -- tasks ---------------------------------------------------------------------------------------------------------


async def test_a_task_takes_a_cpu_unless_it_says_otherwise(placing: Placing) -> None:
    assert await placing.room_for_task(task()) == {}
    asked = task(num_cpus=0.5, num_gpus=1, memory=0, resources={"tokens": 0})
    assert await placing.room_for_task(asked) == {"cpus": 0.5, "gpus": 1.0}
    assert placing.room_now(asked) == {"cpus": 0.5, "gpus": 1.0}
    assert await placing.room_for_task(task(num_cpus=0, resources={"tokens": 1.5})) == {
        "cpus": 0,
        "custom": {"tokens": 1.5},
    }


async def test_tasks_are_spread_by_turns_over_hosts_on_which_they_fit(placing: Placing, hosts: ma.HostMesh) -> None:
    rooms = [await placing.room_for_task(task(scheduling_strategy="SPREAD")) for _ in range(4)]
    first, second = [host.name for host in hosts.hosts]
    assert [room["hosts"] for room in rooms] == [(first,), (second,), (first,), (second,)]
    assert (await placing.room_for_task(task(num_gpus=1, scheduling_strategy="SPREAD")))["hosts"] == (first,)


async def test_tasks_are_not_spread_to_a_host_that_actors_fill(placing: Placing, hosts: ma.HostMesh) -> None:
    first, second = hosts.hosts
    there = NodeAffinitySchedulingStrategy(node_id_of(second.id), soft=False)
    holder = await spawn(placing, actor(num_cpus=4, scheduling_strategy=there))
    rooms = [await placing.room_for_task(task(scheduling_strategy="SPREAD")) for _ in range(2)]
    assert [room["hosts"] for room in rooms] == [(first.name,)] * 2
    await end(holder)


async def test_a_task_of_a_node_runs_there(placing: Placing, hosts: ma.HostMesh) -> None:
    second = hosts.hosts[1]
    strategy = NodeAffinitySchedulingStrategy(node_id_of(second.id), soft=False)
    assert (await placing.room_for_task(task(scheduling_strategy=strategy)))["hosts"] == (second.name,)
    with pytest.raises(TaskUnschedulableError, match="GPU"):
        await placing.room_for_task(task(num_gpus=1, scheduling_strategy=strategy))
    with pytest.raises(TaskUnschedulableError, match="not alive"):
        gone = NodeAffinitySchedulingStrategy("ab" * 28, soft=False)
        await placing.room_for_task(task(scheduling_strategy=gone))
    soft = NodeAffinitySchedulingStrategy("ab" * 28, soft=True)
    assert await placing.room_for_task(task(scheduling_strategy=soft)) == {}


async def test_a_task_may_ask_for_labels(placing: Placing, hosts: ma.HostMesh) -> None:
    first, second = [host.name for host in hosts.hosts]
    on_gpus = NodeLabelSchedulingStrategy({"kind": In("gpu", "tpu")})
    elsewhere = NodeLabelSchedulingStrategy({"kind": DoesNotExist()})
    rather = NodeLabelSchedulingStrategy({}, soft={"kind": In("gpu")})
    nobody = NodeLabelSchedulingStrategy({}, soft={"kind": In("tpu")})
    for strategy, names in [(on_gpus, (first,)), (elsewhere, (second,)), (rather, (first,)), (nobody, (first, second))]:
        assert (await placing.room_for_task(task(scheduling_strategy=strategy)))["hosts"] == names
    assert (await placing.room_for_task(task(label_selector={"kind": "gpu"})))["hosts"] == (first,)
    by_id = task(label_selector={"ray.io/node-id": node_id_of(hosts.hosts[1].id)})
    assert (await placing.room_for_task(by_id))["hosts"] == (second,)


async def test_a_node_resource_says_where(placing: Placing, hosts: ma.HostMesh) -> None:
    room = await placing.room_for_task(task(resources={"node:__internal_head__": 0.001}))
    assert room == {"hosts": (hosts.hosts[0].name,)}


async def test_what_fits_nowhere_waits_with_a_warning(
    placing: Placing, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(placing.room_for_task(task(num_cpus=6)))
    await asyncio.sleep(0)
    assert "cannot be scheduled" in caplog.text
    more = await ma.cluster().grow(1, ma.Resources(cpus=6))
    assert await waiting == {"cpus": 6.0}
    await ma.cluster().leave(more)
    while len(placing.living.hosts) > 2:
        await placing.living.wait_changed()


# -- actors --------------------------------------------------------------------------------------------------------


async def test_actors_that_ask_for_nothing_hold_nothing_and_are_spread(placing: Placing, hosts: ma.HostMesh) -> None:
    spawned = [await spawn(placing, actor()) for _ in range(4)]
    assert sorted(map(host_of, spawned)) == sorted([host.name for host in hosts.hosts] * 2)
    assert await free(hosts.hosts[0].name) == 4
    env = await env_of(next(each for each in spawned if host_of(each) == hosts.hosts[0].name))
    assert not {"CUDA_VISIBLE_DEVICES", "RANK", "MASTER_ADDR"} & (env.keys() - os.environ.keys())
    for each in spawned:
        await end(each)


async def test_an_actor_holds_what_it_asks_for_and_sees_its_devices(placing: Placing, hosts: ma.HostMesh) -> None:
    name = hosts.hosts[0].name
    spawned = await spawn(placing, actor(num_cpus=2, num_gpus=1), env={"OWN": "1"})
    assert (await free(name), await free(name, "gpus")) == (2, 1)
    env = await env_of(spawned)
    assert (env["CUDA_VISIBLE_DEVICES"], env["OWN"]) == ("0", "1")
    seeing_all = await spawn(placing, actor(num_gpus=1), env={NOSET_VARIABLE: "1"})
    assert (await env_of(seeing_all)).get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")
    await end(seeing_all)
    await end(spawned)
    assert (await free(name), await free(name, "gpus")) == (4, 2)


async def test_actors_share_a_device(placing: Placing) -> None:
    spawned = [await spawn(placing, actor(num_cpus=0, num_gpus=0.5)) for _ in range(4)]
    assert sorted([(await env_of(each))["CUDA_VISIBLE_DEVICES"] for each in spawned]) == ["0", "0", "1", "1"]
    for each in spawned:
        await end(each)


async def test_an_actor_waits_for_room(placing: Placing) -> None:
    spawned = [await spawn(placing, actor(num_cpus=4)) for _ in range(2)]
    third = asyncio.create_task(spawn(placing, actor(num_cpus=4)))
    await asyncio.wait([third], timeout=0.05)
    assert not third.done()
    await end(spawned[1])
    await end(await third)
    await end(spawned[0])


async def test_an_actor_bound_to_a_lost_node_is_unschedulable(placing: Placing) -> None:
    with pytest.raises(ActorUnschedulableError):
        await spawn(placing, actor(scheduling_strategy=NodeAffinitySchedulingStrategy("ab" * 28, soft=False)))


async def test_spread_actors_go_to_the_emptiest_host(placing: Placing, hosts: ma.HostMesh) -> None:
    spawned = [await spawn(placing, actor(num_cpus=1, scheduling_strategy="SPREAD")) for _ in range(4)]
    assert sorted(map(host_of, spawned)) == sorted([host.name for host in hosts.hosts] * 2)
    for each in spawned:
        await end(each)


# -- groups --------------------------------------------------------------------------------------------------------


async def test_actors_and_tasks_in_a_group(placing: Placing) -> None:
    named, group = make_group(placing, {"CPU": 1.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}, strategy="STRICT_PACK")
    second = await spawn(placing, actor(num_gpus=1, scheduling_strategy=within(named, 1)))
    env = await env_of(second)
    assert env["CUDA_VISIBLE_DEVICES"] == "1"
    room = await placing.room_for_task(task(num_gpus=1, scheduling_strategy=within(named)))
    assert (room["placement"], room["bundle"], room["gpus"]) == (group.spots[0][0], 0, 1)  # type: ignore[index]
    any_bundle = await spawn(placing, actor(num_gpus=1, scheduling_strategy=within(named)))
    assert (await env_of(any_bundle))["CUDA_VISIBLE_DEVICES"] == "0"
    await end(second)
    await end(any_bundle)


async def test_a_third_actor_of_two_bundles_waits_for_one(placing: Placing) -> None:
    named, _ = make_group(placing, {"CPU": 1.0}, {"CPU": 1.0})
    spawned = [await spawn(placing, actor(num_cpus=1, scheduling_strategy=within(named))) for _ in range(2)]
    third = asyncio.create_task(spawn(placing, actor(num_cpus=1, scheduling_strategy=within(named))))
    await asyncio.wait([third], timeout=0.05)
    assert not third.done()
    await end(spawned[1])
    await end(await third)
    await end(spawned[0])
    with pytest.raises(ValueError, match="fits into no bundle"):
        await spawn(placing, actor(num_cpus=2, scheduling_strategy=within(named)))


async def test_removing_a_group_ends_what_runs_in_it(placing: Placing) -> None:
    named, group = make_group(placing, {"CPU": 1.0})
    told: list[str] = []
    procs, give_back = await spawn(
        placing, actor(num_cpus=1, scheduling_strategy=within(named)), on_removed=lambda why: told.append(why)
    )
    await procs
    waiting = asyncio.create_task(spawn(placing, actor(num_cpus=1, scheduling_strategy=within(named, 0))))
    await asyncio.wait([waiting], timeout=0.05)
    placing.groups.remove(named.id.binary())
    with pytest.raises(ActorPlacementGroupRemoved):
        await waiting
    await wait_free()
    assert told == [f"{group} was removed"]
    assert procs.allocation is None or procs.allocation.is_stopped
    await give_back()
    with pytest.raises(TaskPlacementGroupRemoved):
        await placing.room_for_task(task(scheduling_strategy=within(named)))


async def test_a_task_in_a_removed_group_ends(placing: Placing) -> None:
    named, _ = make_group(placing, {"CPU": 1.0})
    room = await placing.room_for_task(task(scheduling_strategy=within(named, 0)))
    future = ma.task(sleep_long, **room).submit()
    await asyncio.wait([future], timeout=0.5)
    placing.groups.remove(named.id.binary())
    with pytest.raises(ma.Error) as caught:
        await future
    options = task(scheduling_strategy=within(named, 0))
    assert isinstance(placing.error_of(options, caught.value), TaskPlacementGroupRemoved)
    assert placing.error_of(task(), caught.value) is caught.value


async def sleep_long() -> None:
    await asyncio.sleep(60)


async def test_a_group_that_fits_nowhere_waits_for_a_host(placing: Placing) -> None:
    named, group = make_group(placing, {"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 3.0}, strategy="STRICT_SPREAD")
    assert not await placing.groups.wait(named.id.binary(), 0.05)
    assert group.row()["state"] == "PENDING"
    more = await ma.cluster().grow(1, ma.Resources(cpus=3))
    assert await placing.groups.wait(named.id.binary(), 5)
    assert len(set(group.row()["bundles_to_node_id"].values())) == 3
    placing.groups.remove(named.id.binary())
    await wait_free()
    await ma.cluster().leave(more)


@pytest.mark.slow
async def test_bundles_of_a_lost_host_are_placed_elsewhere(placing: Placing, hosts: ma.HostMesh) -> None:
    more = await ma.cluster().grow(1, ma.Resources(cpus=8))
    named, group = make_group(placing, {"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 2.0}, strategy="STRICT_SPREAD")
    assert await placing.groups.wait(named.id.binary(), 5)
    again = await ma.cluster().grow(1, ma.Resources(cpus=4))
    await ma.cluster().leave(more)
    assert await placing.groups.wait(named.id.binary(), 5)
    while group.state != "CREATED":
        await asyncio.sleep(0.01)
    nodes = group.row()["bundles_to_node_id"]
    assert set(nodes.values()) == {node_id_of(host.id) for host in (*hosts.hosts, *again.hosts)}
    spawned = await spawn(placing, actor(num_cpus=2, scheduling_strategy=within(named, list(nodes)[-1])))
    await end(spawned)
    placing.groups.remove(named.id.binary())
    await wait_free()
    await ma.cluster().leave(again)


@pytest.mark.slow
async def test_what_waits_for_a_host_that_goes_is_placed_elsewhere(placing: Placing, hosts: ma.HostMesh) -> None:
    more = await ma.cluster().grow(1, ma.Resources(cpus=4, custom={"rare": 1}))
    while len(placing.living.hosts) < 3:
        await placing.living.wait_changed()
    first = await spawn(placing, actor(num_cpus=0, resources={"rare": 1}))
    second = asyncio.create_task(spawn(placing, actor(num_cpus=0, resources={"rare": 1})))
    await asyncio.wait([second], timeout=0.05)
    await ma.cluster().leave(more)
    with contextlib.suppress(ma.Error):
        await first[0].stop()
    await first[1]()
    await asyncio.wait([second], timeout=0.3)
    assert not second.done()
    again = await ma.cluster().grow(1, ma.Resources(cpus=4, custom={"rare": 1}))
    spawned = await second
    assert host_of(spawned) == again.hosts[0].name
    await end(spawned)
    await ma.cluster().leave(again)
    while len(placing.living.hosts) > 2:
        await placing.living.wait_changed()


async def test_creating_and_removing_is_quick(placing: Placing) -> None:
    count = 300
    began = asyncio.get_running_loop().time()
    made = [make_group(placing, {"CPU": 0.001}, {"CPU": 0.001})[0] for _ in range(count)]
    for named in made:
        assert await placing.groups.wait(named.id.binary(), 5)
    for named in made:
        placing.groups.remove(named.id.binary())
    await wait_free()
    took = asyncio.get_running_loop().time() - began
    print(f"{count / took:.0f} groups made and removed per second")
    assert took < 5
