"""Memory of devices of this process: a fake accelerator's; and CUDA's, where there is any."""

import asyncio

import pytest
import torch
from conformance_owner import assert_same, filled
from device_owner import CudaOwner, mixed
from fake_accelerator import FakeAccelerator

import monarch_async as ma
from monarch_async.bulk.device import LANE_BYTES

SIZE = 5 * LANE_BYTES // 2 + 3


pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


async def test_devices_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAccelerator()
    fake.install(monkeypatch.setattr)
    async with ma.local_hosts():
        tensor = fake.on("fake:0", filled(SIZE).clone())
        async with await ma.register({"w": tensor, "n": torch.ones(3)}, name="mine") as handle:
            got = await handle.fetch()
            assert torch.equal(got["w"], tensor) and got["n"].tolist() == [1, 1, 1]
            there = await handle["w"].fetch(device="fake:1")
            assert torch.equal(there, tensor)
            await handle["w"].write(filled(SIZE, 9).clone())
            assert torch.equal(tensor, filled(SIZE, 9))
            [row] = list(ma.transports())
            assert row.transport == "local" and row.nbytes >= 2 * SIZE
            fake.hold.clear()
            fake.begun.clear()
            out = torch.zeros(SIZE, dtype=torch.uint8)
            reading = asyncio.ensure_future(handle["w"].fetch(out))
            await asyncio.to_thread(fake.begun.wait, 5)
            reading.cancel()
            await asyncio.sleep(0)
            assert not reading.done(), "the copy still goes on"
            fake.hold.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
        with pytest.raises(ma.StaleHandle):
            await handle.fetch()


@pytest.mark.parametrize("transports", ["cma,ucx", pytest.param("ucx", marks=pytest.mark.slow)])
async def test_ucx_with_cuda_needs_no_pinned_memory(transports: str) -> None:
    """The owner's UCX believes that it has CUDA, and that what it registers is CUDA's. Host memory goes its own way."""
    library = pytest.importorskip("monarch_async.bulk.ucx_library").find_library()
    if isinstance(library, str):
        pytest.skip(library)
    async with ma.local_hosts(config=ma.Config(transports=transports)) as hosts:
        owner = await (await hosts.spawn_procs(name="gpu", preload=["torch"])).spawn("owner", CudaOwner)
        handle = await owner.own_mixed.call_one()
        assert_same(await handle.fetch(), mixed())
        await handle.write(mixed(3))
        assert_same(await owner.look.call_one(), mixed(3))
        assert not await owner.copies.call_one() and not await owner.blocks.call_one()
        [row] = [row for row in ma.transports() if row.peer == handle.owner and row.nbytes >= handle.nbytes]
        assert row.transport == "ucx"
        with pytest.raises(ma.StaleHandle):
            await owner.drop.call_one()
            await handle.fetch()


@pytest.mark.gpu
@pytest.mark.parametrize("transport", ["cma", "memfd", "tcp", "ucx", "cma,ucx"])
async def test_memory_of_cuda(transport: str) -> None:
    from gpu_owner import GpuOwner

    async with ma.local_hosts(config=ma.Config(transports=transport)) as hosts:
        owner = await (await hosts.spawn_procs(name="gpu", preload=["torch"])).spawn("owner", GpuOwner)
        handle = await owner.register.call_one()
        want = {"a": torch.arange(SIZE, dtype=torch.int32), "b": torch.ones(7, 9).t(), "step": torch.tensor(3)}
        assert_same(await handle.fetch(), want)
        on_device = await handle.fetch(device="cuda:0")
        assert on_device["a"].is_cuda and torch.equal(on_device["a"].cpu(), want["a"])
        out = torch.zeros(SIZE, dtype=torch.int32, device="cuda")
        await handle["a"].fetch(out)
        assert torch.equal(out.cpu(), want["a"])
        await handle["a"].write(out.neg_())
        assert torch.equal(await owner.look.call_one(), -want["a"])
        [row] = [row for row in ma.transports() if row.peer == handle.owner]
        if handle._region.rkeys:
            assert row.transport == "ucx"
        else:
            assert row.transport == f"{transport.partition(',')[0]}, through pinned memory of its owner"
            assert "ucx" in row.reasons


@pytest.mark.gpu
async def test_a_copy_waits_for_what_the_owner_has_queued() -> None:
    from gpu_owner import GpuOwner

    async with ma.local_hosts() as hosts:
        owner = await (await hosts.spawn_procs(name="gpu", preload=["torch"])).spawn("owner", GpuOwner)
        handle = await owner.register.call_one()
        await owner.queue.call_one(5)  # long kernels, and then a fill, none of which it waits for
        assert (await handle["a"].fetch() == 5).all()
