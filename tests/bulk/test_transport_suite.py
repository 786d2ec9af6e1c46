"""What every transport must do, against real processes, each transport forced.

With ``local`` owner and reader are one process: the owner is a plain object in the client. With the others it is an
actor in a worker, and the reader the client or another worker.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import inspect
import pickle
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import torch
from conformance_owner import (
    Owner,
    Reader,
    assert_same,
    at_first_bytes,
    every_kind,
    filled,
    kill_and_wait,
    zeros_like,
)

import monarch_async as ma

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]

TRANSPORTS = ["local", "cma", "memfd", "ucx", "tcp"]
#: The suite over all of them is slow.
PARAMS = [t if t in ("local", "cma", "tcp") else pytest.param(t, marks=pytest.mark.slow) for t in TRANSPORTS]
MIB = 1 << 20


class Cluster:
    """Hosts that use one transport only."""

    def __init__(self, hosts: ma.HostMesh, transport: str) -> None:
        self.hosts, self.transport = hosts, transport
        self.is_local = transport == "local"
        self._here = Owner()

    async def start(self) -> None:
        self.readers = await self.spawn(Reader, "readers")
        self._owner = await self.spawn(Owner, "owners")
        handle = await self.ask("own_bytes", 10)
        await self.fetch_and_write(handle[0])  # connections stay: they are nobody's leak
        await self.ask("drop")
        if not self.is_local:
            async with await ma.register(filled(10)) as mine:
                await self.readers.digest.call_one(mine)

    @staticmethod
    async def fetch_and_write(handle: ma.Handle[torch.Tensor]) -> None:
        await handle.write(await handle.fetch())

    async def spawn(self, actor: type, name: str) -> Any:
        return await (await self.hosts.spawn_procs(name=name, preload=["torch"])).spawn(name, actor)

    async def ask(self, endpoint: str, *arguments: Any, of: Any = None) -> Any:
        """Call an endpoint of the owner."""
        if of is None and self.is_local:
            found = getattr(self._here, endpoint)
            return await found(*arguments) if inspect.iscoroutinefunction(found) else await asyncio.to_thread(found)
        return await getattr(of or self._owner, endpoint).call_one(*arguments)

    @contextlib.asynccontextmanager
    async def mortal(self, actor: type) -> AsyncIterator[tuple[Any, int]]:
        """An actor that may die, and its pid."""
        async with ma.supervise(ma.ignore):
            procs = await self.hosts.spawn_procs(name="mortals", preload=["torch"])
            mesh = await procs.spawn("mortals", actor)
            yield mesh, await mesh.pid.call_one()
            await procs.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PARAMS)
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
    await hosts.ask("drop")
    assert await hosts.ask("registrations") == 0


async def test_the_transport_is_the_one_asked_for(cluster: Cluster) -> None:
    [handle] = await cluster.ask("own_bytes", 100)
    await handle.fetch()
    [row] = [row for row in ma.transports() if row.peer == handle.owner]
    assert row.transport == cluster.transport and row.nbytes > 0 and row.speed > 0
    assert cluster.transport in str(ma.transports())


# -- what comes back is what is there ----------------------------------------------------------------------------------


async def test_every_kind_of_tensor(cluster: Cluster) -> None:
    handle = await cluster.ask("own_kinds")
    assert_same(await handle.fetch(), every_kind())
    out = zeros_like(every_kind())
    assert await handle.fetch(out) is out
    assert_same(out, every_kind())
    await handle.write(every_kind(seed=3))
    assert_same(await cluster.ask("look"), every_kind(seed=3))
    part = handle["dtypes"]["torch.bfloat16"]
    assert part.dtype is torch.bfloat16 and part.shape == (3, 5)
    assert_same(await part.fetch(), every_kind(seed=3)["dtypes"]["torch.bfloat16"])


async def test_slices(cluster: Cluster) -> None:
    base = torch.arange(40 * 30 * 20, dtype=torch.int32).view(40, 30, 20)
    handle = await cluster.ask("own", base, {})
    for index in [7, slice(5, 9), (slice(None, None, 3), 4), (..., slice(2, 7)), (-1, ..., 0), slice(40, None), ()]:
        want = base[index]
        assert torch.equal(await handle.fetch(slice=index), want)
        out = torch.full((*want.shape, 2), -1, dtype=torch.int32)[..., 0]
        await handle.fetch(out, index)
        assert torch.equal(out, want) and (out._base is None or int((out._base == -1).sum()) >= want.numel())
        await handle.write(want + 1, index)
        base[index] += 1
    assert torch.equal(await cluster.ask("look"), base)


@pytest.mark.parametrize(
    "size",
    [1, 63, 4096, 9 * MIB + 3, *[pytest.param(size * MIB, marks=pytest.mark.slow) for size in (256, 1024)]],
    ids=str,
)
async def test_sizes(cluster: Cluster, size: int) -> None:
    [handle] = await cluster.ask("own_bytes", size)
    out = await handle.fetch()
    assert torch.equal(out, filled(size))
    half, last = out[: size // 2].fill_(1), out[-1].item()
    await handle.write(out)
    out.zero_()
    assert await handle.fetch(out) is out
    assert out[-1] == last and torch.equal(out[size // 2 :], filled(size)[size // 2 :]) and (half == 1).all()


async def test_many_at_once(cluster: Cluster) -> None:
    handles = await cluster.ask("own_bytes", 400_001, 64)
    async with ma.transfers() as batch:
        fetched = [batch.fetch(handle) for handle in handles]
    assert all(torch.equal(task.result(), filled(400_001, seed)) for seed, task in enumerate(fetched))
    sources = [filled(400_001, 100 + seed).clone() for seed in range(64)]
    async with ma.transfers(limit=64) as batch:
        for handle, source in zip(handles, sources, strict=True):
            batch.write(handle, source)
    assert await cluster.ask("digests", 64) == [hashlib.sha256(source.numpy()).hexdigest() for source in sources]


async def test_from_a_third_process(cluster: Cluster) -> None:
    if cluster.is_local:
        pytest.skip("one process")
    [handle] = await cluster.ask("own_bytes", 3 * MIB)
    assert pickle.loads(pickle.dumps(handle)).owner == handle.owner
    assert await cluster.readers.digest.call_one(handle) == hashlib.sha256(filled(3 * MIB).numpy()).hexdigest()
    mine = await ma.register(filled(3 * MIB, 9).clone())
    assert await cluster.readers.digest.call_one(mine) == hashlib.sha256(filled(3 * MIB, 9).numpy()).hexdigest()
    await mine.aclose()


async def test_while_the_owner_computes(cluster: Cluster) -> None:
    if cluster.is_local:
        pytest.skip("the reader computes")
    [handle] = await cluster.ask("own_bytes", 4 * MIB)
    computing = asyncio.ensure_future(cluster.ask("compute"))
    await cluster.ask("wait_computing")
    async with asyncio.timeout(20):
        assert torch.equal(await handle.fetch(), filled(4 * MIB))
        await handle.write(torch.zeros(4 * MIB, dtype=torch.uint8))
    assert not computing.done()
    await cluster.ask("go_on")
    assert await computing > 0
    assert await cluster.ask("digests", 1) == [hashlib.sha256(bytes(4 * MIB)).hexdigest()]


# -- what is no longer there -------------------------------------------------------------------------------------------


async def expect_stale(handle: ma.Handle[Any]) -> None:
    out = torch.zeros(handle.shape, dtype=torch.uint8)
    with pytest.raises(ma.StaleHandle):
        await handle.fetch(out)
    with pytest.raises(ma.StaleHandle):
        await handle.write(out)


@pytest.mark.parametrize("size", [100, 2 * MIB])
async def test_closed(cluster: Cluster, size: int) -> None:
    [handle] = await cluster.ask("own_bytes", size)
    await cluster.ask("reuse")
    await expect_stale(handle)
    assert set((await cluster.ask("look")).tolist()) == {255}, "nobody wrote"
    [other] = await cluster.ask("own_bytes", size)
    await expect_stale(handle)
    assert torch.equal(await other.fetch(), filled(size))


@pytest.mark.parametrize("size", [100, 2 * MIB])
async def test_epochs(cluster: Cluster, size: int) -> None:
    [old] = await cluster.ask("own_bytes", size)
    new = await cluster.ask("advance")
    assert (old.epoch, new.epoch) == (1, 2)
    await expect_stale(old)
    assert torch.equal(await new.fetch(), filled(size))
    await new.write(filled(size, 5))
    newest = await cluster.ask("advance")
    await expect_stale(new)
    assert torch.equal(await newest.fetch(), filled(size, 5))


async def test_leases(cluster: Cluster) -> None:
    handle = await cluster.ask("own", torch.zeros(100, dtype=torch.uint8), {"lease": 60})
    await handle.fetch()
    await cluster.ask("renew", 0.05)
    with pytest.raises(ma.StaleHandle):
        async with asyncio.timeout(5):
            while True:
                await handle.fetch()
                await asyncio.sleep(0.01)
    await expect_stale(handle)
    with pytest.raises(ma.StaleHandle, match="lease"):
        await cluster.ask("renew", 60)


async def test_never_garbage(cluster: Cluster) -> None:
    """Memory is closed and used for something else in the middle of a read: all of it is good, or it is refused."""
    outcomes = set()
    for delay in range(12):
        [handle] = await cluster.ask("own_bytes", 12 * MIB)
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        with at_first_bytes(lambda begun=begun, loop=loop: loop.call_soon_threadsafe(begun.set)):
            reading = asyncio.ensure_future(handle.fetch())
            await asyncio.wait([reading, asyncio.ensure_future(begun.wait())], return_when="FIRST_COMPLETED")
        for _ in range(delay):
            await asyncio.sleep(0)
        await cluster.ask("reuse")
        begun.set()
        try:
            assert torch.equal(await reading, filled(12 * MIB))
            outcomes.add("read")
        except ma.StaleHandle:
            outcomes.add("refused")
    assert outcomes


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["fetch", "write"])
async def test_the_owner_is_killed_midway(cluster: Cluster, what: str) -> None:
    if cluster.is_local:
        pytest.skip("one process")
    async with cluster.mortal(Owner) as (owner, pid):
        [handle] = await cluster.ask("own_bytes", 64 * MIB, of=owner)
        tensor = torch.zeros(64 * MIB, dtype=torch.uint8)
        with at_first_bytes(lambda: kill_and_wait(pid)), pytest.raises(ma.ProcDied, match="SIGKILL") as caught:
            async with asyncio.timeout(30):
                await (handle.fetch(tensor) if what == "fetch" else handle.write(tensor))
        assert caught.value.pid == pid
        assert isinstance(caught.value.__cause__, ma.TransferBroken | ma.NoTransport)
        for _ in range(2):
            with pytest.raises(ma.ProcDied):
                await handle.fetch(slice=slice(10))


@pytest.mark.parametrize("is_write", [False, True], ids=["fetch", "write"])
async def test_the_reader_is_killed_midway(cluster: Cluster, is_write: bool) -> None:
    if cluster.is_local:
        pytest.skip("one process")
    [handle] = await cluster.ask("own_bytes", 48 * MIB)
    async with cluster.mortal(Reader) as (reader, _):
        with pytest.raises(ma.ProcDied):
            async with asyncio.timeout(30):
                await reader.die_midway.call_one(handle, is_write)
    expected = await cluster.ask("digests", 1)
    assert hashlib.sha256((await handle.fetch()).numpy()).hexdigest() == expected[0]
    async with asyncio.timeout(5):
        await cluster.ask("reuse")
    await expect_stale(handle)


# -- bad input ---------------------------------------------------------------------------------------------------------


async def test_what_does_not_fit_changes_nothing(cluster: Cluster) -> None:
    tensor = torch.arange(12.0).view(3, 4)
    handle = await cluster.ask("own", tensor, {"name": "weights"})
    sevens = torch.full((3, 4), 7.0)
    for out, index in [
        (sevens.double(), None), (sevens[:2], None), (sevens.t(), None), (sevens, slice(0, 2)), (sevens[0], (0, 9)),
        (sevens[0], 3), (sevens[0], (0, 0, 0)), (sevens[0], slice(None, None, -1)), ([sevens], None),
    ]:  # fmt: skip
        for act in (handle.fetch, handle.write):
            with pytest.raises((ma.BufferMismatch, ma.BadCall), match="weights"):
                await act(out, index)
    with pytest.raises(ma.BufferMismatch, match="share memory"):
        await handle.fetch(torch.zeros(1).expand(3, 4))
    with pytest.raises(ma.NoTransport, match="accelerator"):
        await handle.fetch(device="cuda:7")
    assert (sevens == 7).all() and torch.equal(await cluster.ask("look"), tensor)


async def test_read_only(cluster: Cluster) -> None:
    handle = await cluster.ask("own", torch.zeros(5), {"readonly": True})
    with pytest.raises(ma.TransferError, match="read-only"):
        await handle.write(torch.ones(5))
    forged = object.__new__(ma.Handle)
    forged.__init__(dataclasses.replace(handle._region, is_writable=True), handle._layout, 1, "forged")
    with pytest.raises(ma.TransferError, match="read-only"):
        await forged.write(torch.ones(5))
    assert (await handle.fetch()).sum() == 0


async def test_of_another_cluster(cluster: Cluster) -> None:
    [handle] = await cluster.ask("own_bytes", 10)
    endpoint = dataclasses.replace(handle._region.endpoint, cluster=b"anotherC", nonce=b"n" * 16)
    foreign = ma.Handle(dataclasses.replace(handle._region, endpoint=endpoint), handle._layout, 1, "foreign")
    out = torch.full((10,), 7, dtype=torch.uint8)
    for act in (foreign.fetch, foreign.write):
        with pytest.raises(ma.ForeignHandle):
            await act(out)
    assert (out == 7).all()


# -- nothing is left ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_nothing_is_left_of_many_registrations(cluster: Cluster) -> None:
    more = await cluster.ask("churn", 10_000 if cluster.transport == "cma" else 1_000)
    assert more["descriptors"] <= 0 and more["mappings"] <= 4 and more["memory"] < 4 * MIB, more


async def test_nothing_is_left_of_many_transfers(cluster: Cluster) -> None:
    from conformance_owner import held

    for round in range(60):
        if round == 20:
            before = held()
        [handle] = await cluster.ask("own_bytes", 300_000)
        await cluster.fetch_and_write(handle)
        await cluster.ask("drop")
    more = {key: count - before[key] for key, count in held().items()}
    assert more["descriptors"] <= 0 and more["mappings"] <= 8 and more["memory"] < 8 * MIB, more
