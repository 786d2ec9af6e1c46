"""Memory of devices: a fake one, whose copies are watched; and CUDA's, where there is any."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from monarch_async.bulk.device import LANE_BYTES, LANES, DeviceLanes, DeviceMemory
from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.local import Local
from monarch_async.bulk.pinned import PinnedTransport, cut_pieces, from_device, to_device
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.errors import BadFrame, BufferMismatch, StaleHandle, TransferBroken, TransferError
from monarch_async.wire.layout import describe

SIZE = 5 * LANE_BYTES // 2 + 3


class FakeDevice:
    """Bytes that only copies reach. ``hold``: cleared, copies wait."""

    device = "cuda:7"

    def __init__(self, size: int) -> None:
        self.size = size
        self.places = [(0xDEAD0000, size, "cuda:7")]
        self.bytes = bytearray(bytes(i % 251 for i in range(251)) * (size // 251 + 1))[:size]
        self.allocated = 0
        self.copies: list[tuple[str, int, int]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.begun = threading.Event()

    def allocate(self, size: int) -> memoryview:
        self.allocated += 1
        return memoryview(bytearray(size))

    def copy_out(self, offset: int, into: memoryview) -> None:
        self._wait("out", offset, len(into))
        into[:] = self.bytes[offset : offset + len(into)]

    def copy_in(self, offset: int, source: memoryview) -> None:
        self._wait("in", offset, len(source))
        self.bytes[offset : offset + len(source)] = source

    def _wait(self, what: str, offset: int, size: int) -> None:
        assert threading.current_thread() is not threading.main_thread(), "copies would stop the plane"
        self.copies.append((what, offset, size))
        self.begun.set()
        assert self.hold.wait(5)


class Plane:
    """An owner and its peer in one process: requests are called, memory is read by `Local`."""

    def __init__(self) -> None:
        self.regions = Regions()
        self.lanes = DeviceLanes(self.regions, self.add, self.remove)
        self.operations = self.lanes.operations()
        self.gone: list[Callable[[], None]] = []
        self.is_open = True
        self.transport = PinnedTransport(self, Local(self.regions))

    def on_gone(self, callback: Callable[[], None], /) -> None:
        self.gone.append(callback)

    async def ask(self, operation: str, *arguments: Any) -> Any:
        if not self.is_open:
            raise TransferBroken("owner", "its process is gone")
        return await self.operations[operation](self, list(arguments))

    async def add(self, spans: Any, is_writable: bool) -> tuple[Region, RemoteRegion]:
        region = self.regions.add(spans, is_writable)
        return region, self.describe(region)

    def describe(self, region: Region) -> RemoteRegion:
        endpoint = Endpoint(b"cluster", 1, "owner", b"machine", 1, 0, b"nonce")
        return RemoteRegion(
            endpoint, region.id, region.stamp, region.id, region.addresses(), region.is_writable,
            device=region.device.device if region.device is not None else "",
        )  # fmt: skip

    async def remove(self, region: Region) -> None:
        self.regions.remove(region)
        await region.wait_unused()

    def offer(self, memory: DeviceMemory, is_writable: bool = True) -> tuple[Region, RemoteRegion]:
        region = self.regions.add((), is_writable, device=memory)
        return region, self.describe(region)


@pytest_asyncio.fixture
async def plane() -> AsyncIterator[Plane]:
    plane = Plane()
    yield plane
    await plane.transport.aclose()
    await plane.lanes.aclose()
    await plane.lanes.aclose()


def ignore(size: int) -> None:
    pass


async def test_read(plane: Plane) -> None:
    memory = FakeDevice(SIZE)
    _, remote = plane.offer(memory)
    assert remote.size == SIZE
    assert RemoteRegion.unpack(remote.pack()).device == "cuda:7"
    into = memoryview(bytearray(SIZE))
    told: list[int] = []
    await plane.transport.read(remote, [(0, SIZE)], [into[:10], into[10:]], told.append)
    assert into == memory.bytes
    assert sum(told) == SIZE
    few = memoryview(bytearray(9))
    await plane.transport.read(remote, [(SIZE - 4, 4), (5, 5)], [few], ignore)
    assert few == memory.bytes[-4:] + memory.bytes[5:10]
    assert memory.allocated == LANES  # used again


@pytest.mark.slow
async def test_write(plane: Plane) -> None:
    memory = FakeDevice(SIZE)
    _, remote = plane.offer(memory)
    before = bytes(memory.bytes)
    source = bytes(255 - i % 256 for i in range(SIZE - 100))
    await plane.transport.write(remote, [(100, SIZE - 100)], [memoryview(source)], ignore)
    assert memory.bytes == before[:100] + source
    _, remote = plane.offer(memory, is_writable=False)
    with pytest.raises(TransferError):
        await plane.transport.write(remote, [(0, 1)], [memoryview(b"x")], ignore)


async def test_a_piece_is_copied_while_another_one_is_read(plane: Plane) -> None:
    memory = FakeDevice(SIZE)
    memory.hold.clear()
    _, remote = plane.offer(memory)
    reading = asyncio.create_task(plane.transport.read(remote, [(0, SIZE)], [memoryview(bytearray(SIZE))], ignore))
    while len(memory.copies) < LANES:
        await asyncio.sleep(0.001)
    memory.hold.set()
    await reading


async def test_it_is_no_ordinary_memory(plane: Plane) -> None:
    _, remote = plane.offer(FakeDevice(10))
    with pytest.raises(BadFrame):
        await Local(plane.regions).read(remote, [(0, 1)], [memoryview(bytearray(1))], ignore)
    ordinary, described = await plane.add([memoryview(bytearray(10))], True)
    with pytest.raises(BadFrame):
        await plane.transport.read(described, [(0, 1)], [memoryview(bytearray(1))], ignore)
    await plane.remove(ordinary)
    with pytest.raises(BadFrame):
        await plane.transport.read(remote, [(5, 6)], [memoryview(bytearray(6))], ignore)


async def test_revoked_in_the_middle(plane: Plane) -> None:
    """Removing waits for the copy that is under way, and its bytes are not taken for good."""
    memory = FakeDevice(100)
    memory.hold.clear()
    region, remote = plane.offer(memory)
    reading = asyncio.create_task(plane.transport.read(remote, [(0, 100)], [memoryview(bytearray(100))], ignore))
    await asyncio.to_thread(memory.begun.wait, 5)
    removing = asyncio.create_task(plane.remove(region))
    await asyncio.sleep(0)
    assert not removing.done()
    memory.hold.set()
    await removing
    with pytest.raises(StaleHandle):
        await reading


async def test_given_up_in_the_middle(plane: Plane) -> None:
    memory = FakeDevice(100)
    memory.hold.clear()
    region, remote = plane.offer(memory)
    into = memoryview(bytearray(100))
    reading = asyncio.create_task(plane.transport.read(remote, [(0, 100)], [into], ignore))
    await asyncio.to_thread(memory.begun.wait, 5)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    memory.hold.set()
    await plane.remove(region)
    assert into == bytes(100)
    _, remote = plane.offer(memory)
    await plane.transport.read(remote, [(0, 100)], [into], ignore)
    assert into == memory.bytes


async def test_a_peer_that_is_gone_leaves_no_lane(plane: Plane) -> None:
    _, remote = plane.offer(FakeDevice(100))
    await plane.transport.read(remote, [(0, 100)], [memoryview(bytearray(100))], ignore)
    assert len(plane.regions) > 1
    plane.is_open = False
    for callback in plane.gone:
        callback()
    await plane.lanes.aclose()
    assert len(plane.regions) == 1
    with pytest.raises(TransferBroken):
        await plane.transport.read(remote, [(0, 100)], [memoryview(bytearray(100))], ignore)


@pytest.mark.slow
async def test_to_a_device(plane: Plane) -> None:
    here = memoryview(bytearray(i % 253 for i in range(SIZE)))
    region, remote = await plane.add([here], False)
    memory = FakeDevice(SIZE)
    local = Local(plane.regions)

    async def read(runs: Any, into: Any) -> None:
        await local.read(remote, runs, into, ignore)

    await to_device(read, [(0, SIZE)], memory)
    assert memory.bytes == here
    with pytest.raises(BufferMismatch):
        await to_device(read, [(0, SIZE - 1)], memory)
    await plane.remove(region)
    with pytest.raises(StaleHandle):
        await to_device(read, [(0, SIZE)], memory)


async def test_from_a_device(plane: Plane) -> None:
    there = memoryview(bytearray(SIZE))
    _, remote = await plane.add([there], True)
    memory = FakeDevice(SIZE)

    async def write(runs: Any, source: Any) -> None:
        await Local(plane.regions).write(remote, runs, source, ignore)

    await from_device(write, [(0, SIZE)], memory)
    assert there == memory.bytes
    with pytest.raises(BufferMismatch):
        await from_device(write, [(0, SIZE - 1)], memory)


@pytest.mark.parametrize("way", [to_device, from_device])
async def test_many_runs_are_several_pieces_that_do_not_share_a_block(plane: Plane, way: Any) -> None:
    count = 10_000
    there = memoryview(bytearray(i % 241 for i in range(2 * count)))
    memory = FakeDevice(count)
    _, remote = await plane.add([there], True)
    local = Local(plane.regions)

    async def move(runs: Any, views: Any) -> None:
        await asyncio.sleep(0.01)  # longer than a copy takes
        await (local.read if way is to_device else local.write)(remote, runs, views, ignore)

    await way(move, [(2 * i, 1) for i in range(count)], memory)
    assert there[::2] == memory.bytes
    assert memory.allocated == LANES


async def test_a_copy_that_fails(plane: Plane) -> None:
    memory = FakeDevice(SIZE)

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: something")

    memory.copy_out = memory.copy_in = fail  # type: ignore[method-assign]
    _, remote = plane.offer(memory)
    with pytest.raises(TransferError, match="CUDA error"):
        await plane.transport.read(remote, [(0, 1)], [memoryview(bytearray(1))], ignore)

    async def move(runs: Any, views: Any) -> None:
        pass

    for way in (to_device, from_device):
        with pytest.raises(TransferError, match="CUDA error"):
            await way(move, [(0, SIZE)], memory)


def test_pieces_fit_a_lane() -> None:
    pieces = list(cut_pieces([(7, LANE_BYTES - 1), (3, 0), (0, LANE_BYTES), *[(i, 1) for i in range(5000)]]))
    sizes = [sum(size for _, size in piece) for piece in pieces]
    assert max(sizes) == LANE_BYTES
    assert sum(sizes) == 2 * LANE_BYTES - 1 + 5000
    assert pieces[0] == [(7, LANE_BYTES - 1), (0, 1)]
    assert list(cut_pieces([])) == []


def memory_of(tensor: Any) -> DeviceMemory:
    """What a tensor of CUDA is registered as."""
    registered = describe(tensor, "register")
    assert registered.beyond is not None
    return registered.beyond


@pytest.mark.gpu
async def test_memory_of_cuda(plane: Plane) -> None:
    import torch

    tensor = torch.arange(SIZE // 4, dtype=torch.int32, device="cuda")
    memory = memory_of(tensor)
    _, remote = plane.offer(memory)
    into = torch.empty(memory.size // 4, dtype=torch.int32)
    view = memoryview(into.numpy()).cast("B")
    await plane.transport.read(remote, [(0, memory.size)], [view], ignore)
    assert torch.equal(into, tensor.cpu())
    into.neg_()
    await plane.transport.write(remote, [(0, memory.size)], [view], ignore)
    assert torch.equal(into, tensor.cpu())


@pytest.mark.gpu
async def test_ucx_moves_the_memory_of_cuda() -> None:
    """Where UCX was built with CUDA no pinned memory of ours is used."""
    import torch

    from monarch_async.bulk.ucx import open_worker
    from monarch_async.bulk.ucx_flight import Flight, find_places
    from monarch_async.bulk.ucx_worker import UcxWorker

    tensor = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
    memory = memory_of(tensor)
    plane = Plane()
    worker = open_worker(plane.regions.beacon, is_loopback_only=True)
    assert isinstance(worker, UcxWorker), worker
    assert worker.has_cuda
    region, remote = plane.offer(memory)
    rkeys = worker.register(region)
    remote = RemoteRegion(
        remote.endpoint, remote.id, remote.stamp, remote.word_at, remote.spans, True, rkeys, device=remote.device
    )
    into = torch.empty(1 << 20, dtype=torch.int32)
    flight = Flight(worker, worker.connect(worker.address), remote, ignore)
    view = memoryview(into.numpy()).cast("B")
    await flight.get(find_places(remote, [(0, memory.size)], [view]))
    await flight.end()
    assert torch.equal(into, tensor.cpu())
    worker.unregister(region)
    await worker.aclose()
