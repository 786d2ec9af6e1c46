"""References: arguments, in containers, through a file, from one actor to another; what they cannot do says so."""

import asyncio
import copy
import pickle
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Store(ma.Actor):
    """Holds numbers, in rank order of the calls that brought them."""

    def __init__(self) -> None:
        self.values: list[int] = []

    @ma.endpoint
    async def put(self, value: int) -> int:
        self.values.append(value)
        return len(self.values)

    @ma.endpoint
    async def taken(self) -> list[int]:
        values, self.values = self.values, []
        return values

    @ma.endpoint
    async def me(self) -> tuple[str, int]:
        return ma.context().name, ma.context().rank


@dataclass
class Job:
    """A reference inside something else."""

    where: dict[str, list[Store]]
    start: int


class User(ma.Actor):
    """Uses references it was given."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store

    @ma.endpoint
    async def use(self, store: Store, value: int) -> list[int]:
        return list(await store.put.call(value))

    @ma.endpoint
    async def use_own(self, value: int) -> int:
        assert self.store is not None
        return await self.store.put.call_one(value)

    @ma.endpoint
    async def run(self, job: Job) -> int:
        first, second = job.where["stores"]
        await asyncio.gather(*[first.put.call_one(job.start + index) for index in range(10)])
        return await second.put.choose(job.start)

    @ma.endpoint
    async def slice_of(self, store: Store, rank: int) -> Store:
        return store.at(rank)

    @ma.endpoint
    def use_on_thread(self, store: Store, value: int) -> int:
        """A plain def cannot await; it can hand the reference on."""
        self.store = store.at(0)
        return value

    @ma.endpoint
    async def end(self, mesh: Any, how: str) -> None:
        await (mesh.restart(0) if how == "restart" else mesh.stop())

    @ma.endpoint
    async def spawn_on(self, procs: ma.ProcMesh) -> Store:
        self.store = await procs.spawn("theirs", Store)
        return self.store

    @ma.endpoint
    async def spawn_procs_on(self, hosts: ma.HostMesh) -> tuple[ma.ProcMesh, Store]:
        self.procs = await hosts.spawn_procs(name="far")
        return self.procs, await self.procs.spawn("far", Store)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts(n=2) as hosts:
        yield hosts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs(name="shared")


@pytest_asyncio.fixture(loop_scope="module")
async def stores(procs: ma.ProcMesh) -> AsyncIterator[Store]:
    mesh = await procs.spawn("stores", Store)
    yield mesh
    await mesh.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def users(procs: ma.ProcMesh) -> User:
    return await procs.spawn("users", User)


async def test_an_actor_uses_a_mesh_it_was_given(users: User, stores: Store) -> None:
    assert await users.at(0).use.call_one(stores, 5) == [1, 1]
    assert await users.at(1).use.call_one(stores.slice(hosts=1), 6) == [2]
    assert list(await stores.taken.call()) == [[5], [5, 6]]


async def test_references_in_containers_and_dataclasses(users: User, stores: Store) -> None:
    job = Job({"stores": [stores.at(0), stores.at(1)]}, 100)
    assert list(await users.run.call(job)) in ([1, 2], [2, 1])
    first, second = await stores.taken.call()
    assert Counter(first) == Counter([*range(100, 110)] * 2)
    assert second == [100, 100]


async def test_a_reference_given_to_init(procs: ma.ProcMesh, stores: Store) -> None:
    users = await procs.spawn("holders", User, store=stores.slice(hosts=0))
    assert sorted(await users.use_own.call(1)) == [1, 2]
    await users.stop()


async def test_a_reference_comes_back_as_a_result(users: User, stores: Store) -> None:
    back = await users.at(0).slice_of.call_one(stores, 1)
    assert await back.me.call_one() == ("stores[1]", 1)
    assert back == stores.at(1)
    assert await users.at(1).use_on_thread.call_one(stores, 3) == 3
    assert await users.at(1).use_own.call_one(7) == 1


async def test_a_reference_through_a_file(
    stores: Store, procs: ma.ProcMesh, hosts: ma.HostMesh, tmp_path: Path
) -> None:
    file = tmp_path / "references.pickle"
    file.write_bytes(pickle.dumps({"stores": stores.slice(hosts=1), "procs": procs, "hosts": hosts}))
    found = pickle.loads(file.read_bytes())
    assert await found["stores"].put.call_one(9) == 1
    assert await stores.taken.call() == ma.ValueMesh(stores.extent, [[], [9]])
    mesh = await found["procs"].slice(hosts=0).spawn("again", Store)
    assert await mesh.put.call_one(1) == 1
    await mesh.stop()
    more = await found["hosts"].slice(hosts=1).spawn_procs({"gpus": 2}, name="more")
    assert more.extent == {"gpus": 2}
    await more.stop()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda mesh: pickle.loads(pickle.dumps(mesh))])
async def test_a_copy_is_equal_and_has_the_same_rights(
    stores: Store, procs: ma.ProcMesh, hosts: ma.HostMesh, copied: Any
) -> None:
    for mesh in (stores, stores.at(1), procs, procs.slice(hosts=0), hosts, hosts.slice(hosts=slice(1, 2))):
        other = copied(mesh)
        assert other == mesh
        assert hash(other) == hash(mesh)
        assert other.extent == mesh.extent
        assert other != stores.flatten("x")
        assert repr(other) == repr(mesh)
    assert await copied(stores).put.call(1) == ma.ValueMesh(stores.extent, [1, 1])
    await copied(stores).restart(0)
    assert list(await stores.put.call(1)) == [1, 2]


async def test_a_slice_has_a_key_in_dicts_and_sets(stores: Store) -> None:
    assert len({stores.at(0), stores.at(0), stores.at(1), stores}) == 3


@pytest.mark.parametrize("how", ["stop", "restart"])
async def test_only_who_spawned_it_may_end_a_mesh(users: User, stores: Store, procs: ma.ProcMesh, how: str) -> None:
    for mesh in (stores, procs):
        with pytest.raises(ma.Closed, match=f"only the process that spawned a mesh can {how} it"):
            await users.at(0).end.call_one(mesh, how)
    assert await stores.at(0).put.call_one(1) == 1


async def test_an_actor_spawns_on_procs_it_was_given(users: User, procs: ma.ProcMesh) -> None:
    theirs = await users.at(0).spawn_on.call_one(procs)
    assert list(await theirs.put.call(4)) == [1, 1]
    assert [name for name, _ in await theirs.me.call()] == ["theirs[0]", "theirs[1]"]


async def test_an_actor_spawns_procs_on_hosts_it_was_given(procs: ma.ProcMesh, hosts: ma.HostMesh) -> None:
    users = await procs.spawn("spawners", User)
    far, mesh = await users.at(0).spawn_procs_on.call_one(hosts.slice(hosts=1))
    assert await mesh.put.call_one(4) == 1
    assert far.extent == {}
    with pytest.raises(ma.Closed):
        await far.stop()
    assert {proc.name for proc in (await hosts.status()).hosts[1].procs} >= {"shared[1]", "far[0]"}
    await users.stop()
