"""Memory of devices of other processes: registered, read and written, by each transport; a fake accelerator's."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch
from conformance_owner import assert_same, at_first_bytes, filled, kill_and_wait, zeros_like
from device_owner import DeviceOwner, DeviceReader, mixed
from fake_accelerator import FakeAccelerator

import monarch_async as ma
from monarch_async.bulk.device import LANE_BYTES, LANES

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]

SIZE = 5 * LANE_BYTES // 2 + 3


class Cluster:
    """Hosts that use one transport only, an owner whose memory is on devices, and a reader that has some too."""

    def __init__(self, hosts: ma.HostMesh, transport: str) -> None:
        self.hosts, self.transport = hosts, transport

    async def start(self) -> None:
        self.owner: DeviceOwner = await self.spawn(DeviceOwner, "owner")
        self.reader: DeviceReader = await self.spawn(DeviceReader, "reader")
        [handle] = await self.owner.own_bytes.call_one(10)
        await handle.write(await handle.fetch())  # connections stay: they are nobody's leak
        await self.owner.copies.call_one()

    async def spawn(self, actor: type, name: str) -> Any:
        return await (await self.hosts.spawn_procs(name=name, preload=["torch"])).spawn(name, actor)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["cma", *[pytest.param(name, marks=pytest.mark.slow) for name in ("memfd", "ucx", "tcp")]],
)
async def hosts(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    if request.param == "ucx":
        library = pytest.importorskip("monarch_async.bulk.ucx_library").find_library()
        if isinstance(library, str):
            pytest.skip(library)
    async with ma.local_hosts(config=ma.Config(transports=request.param, bulk_retries=1.0)) as hosts:
        cluster = Cluster(hosts, request.param)
        await cluster.start()
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(hosts: Cluster) -> AsyncIterator[Cluster]:
    yield hosts
    await hosts.owner.drop.call_one()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    """Devices of this process."""
    fake = FakeAccelerator()
    fake.install(monkeypatch.setattr)
    return fake


# -- an owner's ----------------------------------------------------------------------------------------------------


async def test_every_kind_of_tensor(cluster: Cluster) -> None:
    handle = await cluster.owner.own_mixed.call_one()
    assert {leaf.device for leaf in handle["dtypes"].layout.leaves} == {"fake:0", "fake:1"}
    assert handle["cpu"]["step"].layout.leaves[0].device == "cpu"
    assert_same(await handle.fetch(), mixed())
    halves = (await handle["halves"].fetch())[2]
    assert torch.equal(halves, mixed()["halves"][2])
    out = zeros_like(mixed())
    assert await handle.fetch(out) is out
    assert_same(out, mixed())
    copies = await cluster.owner.copies.call_one()
    assert {(device, way) for device, way, _ in copies} == {("fake:0", "out"), ("fake:1", "out")}
    await handle.write(mixed(seed=3))
    assert_same(await cluster.owner.look.call_one(), mixed(seed=3))
    assert {way for _, way, _ in await cluster.owner.copies.call_one()} == {"in"}
    part = handle["ways"][0]
    assert_same(await part.fetch(slice=(slice(2, 9, 3), ..., 1)), mixed(seed=3)["ways"][0][2:9:3, ..., 1])
    await part.write(torch.zeros(10, 8), slice=3)
    whole = mixed(seed=3)["ways"][0]
    whole[3] = 0
    assert_same((await cluster.owner.look.call_one())["ways"][0], whole)


async def test_the_table_says_why(cluster: Cluster) -> None:
    [handle] = await cluster.owner.own_bytes.call_one(100)
    await handle.fetch()
    [row] = [row for row in ma.transports() if row.peer == handle.owner]
    assert row.transport == f"{cluster.transport}, through pinned memory of its owner"
    assert row.reasons["ucx"] == "it moves memory of CUDA devices only"
    assert row.nbytes >= 100 and row.speed > 0
    assert "through pinned memory of its owner" in str(ma.transports())
    assert await cluster.owner.blocks.call_one() <= LANES


async def test_many_pieces_and_readers(cluster: Cluster) -> None:
    [handle] = await cluster.owner.own_bytes.call_one(SIZE)
    whole = hashlib.sha256(filled(SIZE).numpy()).hexdigest()
    tasks = [handle.fetch() for _ in range(3)]
    theirs = cluster.reader.digest.call_one(handle)
    for got in await asyncio.gather(*tasks):
        assert torch.equal(got, filled(SIZE))
    assert await theirs == whole
    await handle.write(filled(SIZE, 5))
    assert torch.equal(await cluster.owner.look.call_one(), filled(SIZE, 5))
    assert await cluster.owner.blocks.call_one() <= 2 * LANES


async def test_stale_and_closed(cluster: Cluster) -> None:
    [old] = await cluster.owner.own_bytes.call_one(SIZE)
    new = await cluster.owner.advance.call_one()
    await stale(old)
    assert torch.equal(await new.fetch(), filled(SIZE))
    await cluster.owner.reuse.call_one()
    await stale(old)
    await stale(new)
    assert set((await cluster.owner.look.call_one()).tolist()) == {255}, "nobody wrote"


async def stale(handle: ma.Handle[torch.Tensor]) -> None:
    for act in (handle.fetch(), handle.fetch(slice=slice(10)), handle.write(torch.zeros(SIZE, dtype=torch.uint8))):
        with pytest.raises(ma.StaleHandle, match="bytes"):
            await act


async def test_closed_in_the_middle_of_a_copy(cluster: Cluster) -> None:
    """Closing waits for the copy, and what it brought is refused."""
    [handle] = await cluster.owner.own_bytes.call_one(SIZE)
    await cluster.owner.hold.call_one()
    reading = asyncio.ensure_future(handle.fetch())
    await cluster.owner.wait_begun.call_one()
    closing = asyncio.ensure_future(cluster.owner.reuse.call_one())
    await cluster.owner.pid.call_one()
    assert not closing.done()
    await cluster.owner.let_go.call_one()
    await closing
    with pytest.raises(ma.StaleHandle):
        await reading


async def test_read_only(cluster: Cluster) -> None:
    handle = await cluster.owner.own.call_one(torch.zeros(5), {"readonly": True})
    with pytest.raises(ma.TransferError, match="read-only"):
        await handle.write(torch.ones(5))
    assert (await handle.fetch()).sum() == 0


@pytest.mark.parametrize("what", ["fetch", "write"])
async def test_the_owner_is_killed_midway(cluster: Cluster, what: str) -> None:
    async with ma.supervise(ma.ignore):
        owner = await cluster.spawn(DeviceOwner, "mortal")
        pid = await owner.pid.call_one()
        [handle] = await owner.own_bytes.call_one(8 * LANE_BYTES)
        tensor = torch.zeros(8 * LANE_BYTES, dtype=torch.uint8)
        with at_first_bytes(lambda: kill_and_wait(pid)), pytest.raises(ma.ProcDied, match="SIGKILL"):
            async with asyncio.timeout(30):
                await (handle.fetch(tensor) if what == "fetch" else handle.write(tensor))


async def test_a_reader_that_dies_leaves_no_lanes(cluster: Cluster) -> None:
    [handle] = await cluster.owner.own_bytes.call_one(8 * LANE_BYTES)
    before = await cluster.owner.blocks.call_one()
    async with ma.supervise(ma.ignore):
        reader = await cluster.spawn(DeviceReader, "mortal")
        with pytest.raises(ma.ProcDied):
            async with asyncio.timeout(30):
                await reader.die_midway.call_one(handle, False)
    async with asyncio.timeout(5):
        while await cluster.owner.blocks.call_one() > before:
            await asyncio.sleep(0.01)
    assert torch.equal(await handle.fetch(), filled(8 * LANE_BYTES))


# -- of this process -----------------------------------------------------------------------------------------------


async def test_from_device_to_device(cluster: Cluster, fake: FakeAccelerator) -> None:
    [handle] = await cluster.owner.own_bytes.call_one(SIZE)
    device, got = await cluster.reader.fetch_there.call_one(handle)
    assert (device, got) == ("fake:1", filled(SIZE).numpy().tobytes())
    here = await handle.fetch(device="fake:0")
    assert fake.device_of(here) == "fake:0" and torch.equal(here, filled(SIZE))
    assert fake.copies == [("fake:0", "in", min(LANE_BYTES, SIZE - start)) for start in range(0, SIZE, LANE_BYTES)]
    await handle.write(fake.on("fake:0", filled(SIZE, 8).clone()))
    assert torch.equal(await cluster.owner.look.call_one(), filled(SIZE, 8))
    assert not fake.blocks and not fake.pinned


async def test_trees_to_devices(cluster: Cluster, fake: FakeAccelerator) -> None:
    handle = await cluster.owner.own_mixed.call_one()
    got = await handle.fetch(device="fake:1")
    assert_same(got, mixed())
    out = zeros_like(mixed())
    for tensor in (*out["dtypes"].values(), *out["ways"][:4]):
        fake.on("fake:0", tensor)
    await handle.fetch(out)
    assert_same(out, mixed())
    source = mixed(4)
    for tensor in (*source["dtypes"].values(), *source["ways"][:4]):
        fake.on("fake:1", tensor)
    await handle.write(source)
    assert_same(await cluster.owner.look.call_one(), mixed(4))


async def test_layouts_that_differ_go_by_an_image(cluster: Cluster, fake: FakeAccelerator) -> None:
    base = torch.arange(40 * 30, dtype=torch.int32).view(40, 30)
    handle = await cluster.owner.own.call_one(base, {})
    out = fake.on("fake:0", torch.zeros(30, 40, dtype=torch.int32)).t()
    await handle.fetch(out)
    assert torch.equal(out, base)
    assert torch.equal(await handle.fetch(slice=(slice(None), slice(0, None, 2)), device="fake:0"), base[:, ::2])
    await handle.write(out + 1)
    await handle.write(fake.on("fake:1", (base.t() + 2).contiguous()).t())
    assert torch.equal(await cluster.owner.look.call_one(), base + 2)
    assert fake.pinned == 3


async def test_what_does_not_fit_changes_nothing(cluster: Cluster, fake: FakeAccelerator) -> None:
    handle = await cluster.owner.own.call_one(torch.zeros(5), {"name": "weights"})
    out = fake.on("fake:0", torch.full((4,), 7.0))
    with pytest.raises(ma.BufferMismatch, match="weights"):
        await handle.fetch(out)
    for device in ("fake:2", "cuda:0"):
        with pytest.raises(ma.NoTransport, match="fake only"):
            await handle.fetch(device=device)
    assert (out == 7).all() and not fake.copies


async def test_nothing_is_left(cluster: Cluster) -> None:
    for _ in range(30):
        [handle] = await cluster.owner.own_bytes.call_one(300_000)
        await handle.write(await handle.fetch())
        await cluster.owner.drop.call_one()
    assert await cluster.owner.blocks.call_one() <= 2 * LANES
    assert await cluster.owner.registrations.call_one() <= 2 * LANES, "lanes only"
