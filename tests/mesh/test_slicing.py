"""Slices of every kind of mesh: who is called, under which points the results stand; agreeing with numpy."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = {"hosts": 2, "rows": 2, "columns": 3}


class Where(ma.Actor):
    """Says which member it is, of its own mesh and of the mesh of its proc."""

    @ma.endpoint
    async def here(self) -> int:
        return ma.context().rank

    @ma.endpoint
    async def there(self) -> tuple[int, dict[str, int], int, str]:
        at = ma.context()
        return at.rank, dict(at.point), at.proc.rank, at.host

    @ma.endpoint
    async def twice(self) -> AsyncIterator[int]:
        yield ma.context().rank
        yield ma.context().rank


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts(n=2) as hosts:
        yield hosts


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs({"rows": 2, "columns": 3}, name="grid")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grid(procs: ma.ProcMesh) -> Where:
    return await procs.spawn("grid", Where)


INDICES: list[dict[str, Any]] = [
    {},
    {"hosts": 1},
    {"hosts": -1, "rows": 0, "columns": -2},
    {"columns": slice(0, 2)},
    {"columns": slice(None, None, 2)},
    {"columns": slice(None, None, -1), "hosts": slice(None, None, -1)},
    {"rows": slice(-1, None), "hosts": 0},
    {"columns": slice(1, 100)},
]


@pytest.mark.parametrize("index", INDICES, ids=str)
async def test_calls_on_slices_reach_whom_numpy_says_and_stand_at_their_points(
    grid: Where, index: dict[str, Any]
) -> None:
    array = np.arange(12).reshape(2, 2, 3)
    expected = np.asarray(array[tuple(index.get(axis, slice(None)) for axis in SIZES)])
    part = grid.slice(**index)
    assert part.extent.sizes == expected.shape
    results = await part.here.call()
    assert results.extent == part.extent
    for point, rank in results.items():
        assert expected[tuple(point.values())] == rank
    streamed = {tuple(point.values()): rank async for point, rank in part.here.stream()}
    assert streamed == {tuple(point.values()): rank for point, rank in results.items()}
    items = [(tuple(point.values()), rank) async for point, rank in part.twice.stream()]
    assert sorted(items) == sorted([*streamed.items()] * 2)
    assert await part.here.choose() in expected


async def test_slices_of_slices_flatten_split_rename_and_at(grid: Where) -> None:
    array = np.arange(12).reshape(2, 2, 3)
    twice = grid.slice(columns=slice(1, None)).slice(rows=1)
    assert list(await twice.here.call()) == array[:, 1, 1:].ravel().tolist()
    flat = grid.flatten("worker")
    assert dict(flat.extent) == {"worker": 12}
    assert list(await flat.slice(worker=slice(None, None, 5)).here.call()) == [0, 5, 10]
    split = grid.flatten("worker").split(worker=("dp", "tp"), tp=4)
    assert dict(split.extent) == {"dp": 3, "tp": 4}
    assert list(await split.slice(tp=1).here.call()) == [1, 5, 9]
    assert (await split.slice(dp=1).here.call()).extent == {"tp": 4}
    renamed = grid.rename(hosts="nodes", columns="gpus")
    assert list(renamed.extent) == ["nodes", "rows", "gpus"]
    assert await renamed.slice(nodes=1, rows=0, gpus=0).here.call_one() == 6
    assert [await grid.at(rank).here.call_one() for rank in (0, 7, -1)] == [0, 7, 11]
    assert await grid.slice(hosts=1).at(0).here.call_one() == 6


async def test_results_are_sliced_as_the_mesh_is(grid: Where) -> None:
    results = await grid.here.call()
    for index in INDICES[1:]:
        assert results.slice(**index) == await grid.slice(**index).here.call()
    assert results.flatten("worker") == await grid.flatten("worker").here.call()
    assert results.at(hosts=1, rows=1, columns=2) == 11


async def test_actors_on_a_slice_of_procs_are_a_mesh_of_their_own(procs: ma.ProcMesh) -> None:
    part = procs.slice(hosts=slice(None, None, -1), rows=1, columns=slice(0, 3, 2))
    mesh = await part.spawn("part", Where)
    found = await mesh.there.call()
    assert found.extent == {"hosts": 2, "columns": 2}
    assert [rank for rank, _, _, _ in found] == [0, 1, 2, 3]
    assert [point for _, point, _, _ in found] == [dict(point) for point, _ in found.items()]
    assert [proc for _, _, proc, _ in found] == [9, 11, 3, 5]
    assert [host for _, _, _, host in found] == ["host1", "host1", "host0", "host0"]
    assert await mesh.slice(columns=1).here.call() == ma.ValueMesh(ma.Extent(hosts=2), [1, 3])
    await mesh.stop()


async def test_procs_on_a_slice_of_hosts(hosts: ma.HostMesh) -> None:
    procs = await hosts.slice(hosts=slice(1, 2)).spawn_procs({"gpus": 2}, name="second")
    assert procs.extent == {"hosts": 1, "gpus": 2}
    mesh = await procs.spawn("second", Where)
    assert {host for _, _, _, host in await mesh.there.call()} == {"host1"}
    await procs.stop()
    turned = await hosts.slice(hosts=slice(None, None, -1)).rename(hosts="machines").spawn_procs(name="turned")
    assert turned.extent == {"machines": 2}
    mesh = await turned.spawn("turned", Where)
    assert [host for _, _, _, host in await mesh.there.call()] == ["host1", "host0"]
    await turned.stop()


async def test_several_actors_in_a_proc_and_two_meshes_of_one_class(procs: ma.ProcMesh, grid: Where) -> None:
    other = await procs.spawn("other", Where)
    part = await procs.slice(rows=0).spawn("grid", Where)  # a name may be used twice: ids tell meshes apart
    everywhere, where, here = await grid.there.call(), await other.there.call(), await part.there.call()
    assert list(everywhere) == list(where)
    assert len(here) == 6
    assert [proc for _, _, proc, _ in here] == [0, 1, 2, 6, 7, 8]
    await other.stop()
    with pytest.raises(ma.ActorDied):
        await other.here.call()
    assert len(await grid.here.call()) == 12


async def test_stopping_a_slice_of_procs_leaves_the_others(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, name="half")
    mesh = await procs.spawn("half", Where)
    await procs.slice(gpus=0).stop()
    assert list(await mesh.slice(gpus=1).here.call()) == [1, 3]
    with pytest.raises(ma.ProcDied):
        await mesh.slice(gpus=0).here.call()
    await procs.stop()


async def test_meshes_say_what_they_are(hosts: ma.HostMesh, procs: ma.ProcMesh, grid: Where) -> None:
    assert [repr(mesh) for mesh in (hosts, procs.slice(hosts=0), grid.at(3))] == [
        "<HostMesh hosts hosts=2>",
        "<ProcMesh grid rows=2 columns=3>",
        "<ActorMesh grid>",
    ]
    assert len(procs) == procs.size == 12
    assert [tuple(point.values()) for point in procs.slice(hosts=0, rows=1).points()] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("mesh", ["hosts", "procs", "grid"])
@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        ({"nope": 0}, ma.AxisError, "unknown axis 'nope'; this mesh has: hosts"),
        ({"hosts": 2}, ma.RankError, "hosts index 2 is out of range"),
        ({"hosts": -3}, ma.RankError, "hosts index -3 is out of range"),
        ({"hosts": slice(1, 1)}, ma.ExtentError, "hosts=1:1 selects nothing"),
        ({"hosts": "0"}, ma.ExtentError, "hosts index '0' is not an integer"),
        ({"hosts": True}, ma.ExtentError, "hosts index True is not an integer"),
        ({"hosts": [0, 1]}, ma.ExtentError, "not an integer"),
        ({"hosts": slice(None, None, 0)}, ma.ExtentError, "slice step cannot be zero"),
    ],
    ids=str,
)
async def test_a_slice_that_makes_no_sense(
    hosts: ma.HostMesh, procs: ma.ProcMesh, grid: Where, mesh: str, index: Any, error: type[Exception], says: str
) -> None:
    found: Any = {"hosts": hosts, "procs": procs, "grid": grid}[mesh]
    with pytest.raises(error, match=says):
        found.slice(**index)
