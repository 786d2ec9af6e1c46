"""Values through the whole system, there and back: every dtype and layout, arrays, bytes, large and small, by every way
values travel; what arrives is the receiver's own, and what was sent may change at once."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio
import torch

import monarch_async as ma

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
]

LARGE = 50 << 20
PRELOAD = ["torch", "pyarrow", "pytest"]


class Mirror(ma.Actor):
    """Gives back what it got, and keeps things."""

    def __init__(self, kept: Any = None) -> None:
        self.kept: Any = kept

    @ma.endpoint
    async def reflect(self, value: Any) -> Any:
        return value

    @ma.endpoint
    def reflect_on_thread(self, value: Any) -> Any:
        return value

    @ma.endpoint
    async def reflect_later(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    @ma.endpoint
    async def each(self, *values: Any) -> AsyncIterator[Any]:
        for value in values:
            yield value

    @ma.endpoint
    async def keep(self, value: Any) -> None:
        self.kept = value

    @ma.endpoint
    async def get(self) -> Any:
        return self.kept

    @ma.endpoint
    async def add_in_place(self, value: Any, by: int) -> Any:
        """Fails unless what arrived can be written to."""
        value += by
        return value

    @ma.endpoint
    async def grow(self, size: int, steps: int) -> AsyncIterator[torch.Tensor]:
        """The same tensor, changed between the items."""
        weights = torch.zeros(size)
        for _ in range(steps):
            weights += 1
            yield weights

    @ma.endpoint
    async def sum(self, value: torch.Tensor) -> float:
        return float(value.sum())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mirrors(hosts: ma.HostMesh) -> Mirror:
    procs = await hosts.spawn_procs({"gpus": 2}, name="mirrors", preload=PRELOAD)
    return await procs.spawn("mirrors", Mirror)


@pytest_asyncio.fixture(loop_scope="module")
async def mirror(mirrors: Mirror) -> Mirror:
    return mirrors.at(0)


def is_same(one: Any, other: Any) -> bool:
    """Same type, shape, dtype and bits, NaNs and signed zeros included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.shape, one.requires_grad) != (other.dtype, other.shape, other.requires_grad):
            return False
        return bits(one) == bits(other)
    if isinstance(one, np.ndarray):
        whole = list if one.dtype == object else bytes
        return one.dtype == other.dtype and one.shape == other.shape and whole(one.ravel()) == whole(other.ravel())
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, Batch):
        return is_same(vars(one), vars(other))
    return bool(one == other)


def bits(tensor: torch.Tensor) -> bytes:
    whole = torch.empty(tensor.shape, dtype=tensor.dtype)
    whole.copy_(tensor.detach())
    return whole.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if whole.numel() else b""


@dataclass
class Batch:
    """What people send."""

    observations: torch.Tensor
    masks: dict[str, np.ndarray]
    rewards: list[float]
    note: bytes
    version: int = 3


DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.bool, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip


def filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Every bit pattern that the dtype's bytes allow, more or less."""
    tensor = torch.empty(shape, dtype=dtype)
    raw = torch.arange(tensor.numel() * tensor.element_size(), dtype=torch.int64) * 37 % 251
    raw = (raw % 2 if dtype is torch.bool else raw).to(torch.uint8)
    return raw.view(dtype).reshape(shape) if tensor.numel() else tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
async def test_every_dtype_in_every_layout(mirror: Mirror, dtype: torch.dtype) -> None:
    values = {
        "0-d": filled(dtype, 1)[0],
        "one": filled(dtype, 1),
        "empty": filled(dtype, 0),
        "empty with axes": filled(dtype, 3, 0, 2),
        "small": filled(dtype, 3, 5),
        "over a page": filled(dtype, 70, 90),
        "over a chunk": filled(dtype, 800, 1000),
        "transposed": filled(dtype, 30, 40).T,
        "strided": filled(dtype, 40, 50)[::3, 5:45:2],
        "expanded": filled(dtype, 7, 1).expand(7, 9),
        "from the end": filled(dtype, 100)[60:],
    }
    back = await mirror.reflect.call_one(values)
    for name, value in values.items():
        assert is_same(back[name], value), name


VALUES: dict[str, Any] = {
    "none": None,
    "scalars": [True, -1, 2**100, 1.5, math.inf, 1j, "ü" * 300, ...],
    "bytes": [b"", b"x" * 100, bytes(70_000), bytearray(5), bytearray(300_000), memoryview(b"abc").tobytes()],
    "collections": {"tuple": (1, (2,)), "set": {1, 2}, "frozen": frozenset("ab"), 3: [[]]},
    "numpy": [
        np.arange(10),
        np.arange(100_000, dtype=np.float32).reshape(100, -1)[:, ::2],
        np.array(3),
        np.array([], dtype=np.int8),
        np.array(["a", "bc"]),
        np.array([1, "x", None], dtype=object),
        np.float32(1.5),
        np.zeros(3, dtype=[("a", np.int32), ("b", np.float64)]),
        np.datetime64("2026-01-01"),
    ],
    "batch": Batch(
        torch.randn(64, 84), {"done": np.zeros(64, bool), "all": np.ones((300, 400))}, [1.0] * 64, bytes(100_000)
    ),
    "parameter": torch.nn.Parameter(torch.randn(100, 20)),
    "state dict": torch.nn.Linear(50, 60).state_dict(),
    "wants grad": torch.randn(3, requires_grad=True),
    "arrow": pa.table({"x": [1, 2, 3], "y": ["a", None, "c"]}),
    "size": torch.Size([2, 3]),
    "dtype and device": (torch.bfloat16, torch.device("cpu")),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("way", ["call", "thread", "later", "stream", "port"])
async def test_values_come_back_the_same_by_every_way(mirror: Mirror, name: str, way: str) -> None:
    value = VALUES[name]
    match way:
        case "call":
            back = await mirror.reflect.call_one(value)
        case "thread":
            back = await mirror.reflect_on_thread.call_one(value)
        case "later":
            back = await mirror.reflect_later.call_one(value=value)
        case "stream":
            (back,) = [item async for item in mirror.each.stream_one(value)]
        case _:
            port, receiver = ma.channel()
            async with receiver:
                await port.send(value)
                back = await receiver.recv()
    assert is_same(back, value)


async def test_tensors_that_share_memory_and_things_that_are_one(mirror: Mirror) -> None:
    shared = [1, 2]
    first, second = await mirror.reflect.call_one((shared, shared))
    assert first is second
    tensor = torch.arange(10_000)
    one, other = await mirror.reflect.call_one([tensor, tensor])
    assert one is other


async def test_a_sparse_tensor_and_a_tensor_subclass(mirror: Mirror) -> None:
    sparse = torch.eye(4).to_sparse()
    assert torch.equal((await mirror.reflect.call_one(sparse)).to_dense(), torch.eye(4))
    buffer = torch.nn.Buffer(torch.arange(3.0))
    assert torch.equal(await mirror.reflect.call_one(buffer), torch.arange(3.0))


async def test_functions_and_classes_travel_by_value(mirror: Mirror) -> None:
    by = 7

    class Local:
        def __call__(self, x: int) -> int:
            return x + by

    assert (await mirror.reflect.call_one(lambda x: x * by))(6) == 42
    assert (await mirror.reflect.call_one(Local()))(1) == 8


@pytest.mark.parametrize("way", ["argument", "result", "item", "port", "init", "cast"])
async def test_fifty_megabytes(mirrors: Mirror, hosts: ma.HostMesh, way: str) -> None:
    mirror = mirrors.at(0)
    tensor = torch.arange(LARGE // 4, dtype=torch.int32)
    match way:
        case "argument":
            assert await mirror.sum.call_one(tensor) == float(tensor.sum())
        case "result":
            await mirror.keep.call_one(tensor)
            assert torch.equal(await mirror.get.call_one(), tensor)
            await mirror.keep.call_one(None)
        case "item":
            count = 0
            async for item in mirror.each.stream_one(tensor, 1, tensor):
                assert item == 1 if count == 1 else torch.equal(item, tensor)
                count += 1
            assert count == 3
        case "port":
            port, receiver = ma.channel()
            async with receiver:
                await port.send(tensor)
                assert torch.equal(await receiver.recv(), tensor)
        case "init":
            procs = await hosts.spawn_procs(name="heavy", preload=PRELOAD)
            heavy = await procs.spawn("heavy", Mirror, kept=tensor)
            assert torch.equal(await heavy.get.call_one(), tensor)
            await procs.stop()
        case _:
            assert list(await mirrors.sum.call(tensor)) == [float(tensor.sum())] * 2


SIZES = [3, 3000, 40_000, 2_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["torch", "numpy", "bytearray"])
async def test_the_sender_may_change_its_values_as_soon_as_call_returns(mirrors: Mirror, size: int, kind: str) -> None:
    value: Any = {"torch": torch.ones, "numpy": np.ones, "bytearray": lambda n: bytearray(b"\1") * n}[kind](size)
    first = mirrors.at(0)
    calls: list[Any] = [first.reflect.call_one(value), mirrors.reflect.call(value), mirrors.reflect.choose(value)]
    stream = mirrors.at(1).each.stream_one(value)
    mirrors.at(0).keep.broadcast(value)
    port, receiver = ma.channel()
    sending = port.send(value)
    value[:] = bytes(size) if kind == "bytearray" else 9
    one, both, chosen = await asyncio.gather(*calls)
    await sending
    async with receiver:
        through_port = await receiver.recv()
    found = [one, *both, chosen, await anext(stream), await mirrors.at(0).get.call_one(), through_port]
    await stream.aclose()
    for back in found:
        assert len(back) == size
        assert all(part == 1 for part in (back[0], back[size // 2], back[-1]))


@pytest.mark.parametrize("size", SIZES)
async def test_what_arrives_can_be_written_to_and_is_the_receivers_own(mirrors: Mirror, size: int) -> None:
    tensor, array = torch.zeros(size), np.zeros(size)
    for value in (tensor, array):
        first, second = await mirrors.add_in_place.call(value, 5)
        assert first[-1] == second[-1] == 5
        assert value[-1] == 0
        first += 1  # neither does one member's result touch the other's
        assert (first[0], second[0]) == (6, 5)
    await mirrors.keep.call(tensor)
    (before, _) = await mirrors.get.call()
    before += 3
    assert float((await mirrors.at(0).get.call_one())[0]) == 0


@pytest.mark.parametrize("size", SIZES)
async def test_items_of_a_stream_do_not_change_after_they_were_yielded(mirror: Mirror, size: int) -> None:
    items = [item async for item in mirror.grow.stream_one(size, 12)]
    assert [float(item[0]) for item in items] == [float(item[-1]) for item in items] == [float(n) for n in range(1, 13)]


@pytest.mark.slow
async def test_a_large_payload_holds_up_no_other_call(mirrors: Mirror) -> None:
    """Small calls to another member are answered while a large one is on its way."""
    tensor = torch.zeros(4 * LARGE // 4)
    large = mirrors.at(0).reflect.call_one(tensor)
    answered = 0
    while not large.done():
        await mirrors.at(1).reflect.call_one(answered)
        answered += 1
    assert answered > 3
    assert torch.equal(await large, tensor)


async def test_a_large_call_that_is_cancelled_at_once(mirrors: Mirror) -> None:
    tensor = torch.zeros(LARGE // 4)
    call = mirrors.at(0).reflect_later.call_one(tensor)
    call.cancel()
    async with asyncio.timeout(4):  # less than the grace after which an acknowledgement is given up
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await mirrors.at(0).reflect.call_one(1) == 1


async def test_an_argument_that_cannot_be_rebuilt_is_the_answer(mirrors: Mirror) -> None:
    with pytest.raises(RuntimeError, match="not here"):
        await mirrors.at(0).reflect.call_one(Unbuildable())
    assert await mirrors.at(0).reflect.call_one(1) == 1


class Unbuildable:
    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def refuse() -> None:
    raise RuntimeError("not here")


async def test_a_model_is_trained_where_it_arrives(mirror: Mirror) -> None:
    """Parameters stay leaves that want gradients, on both ways."""
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1))
    back = await mirror.reflect.call_one(model)
    back(torch.ones(5, 30)).sum().backward()
    assert all(parameter.grad is not None and parameter.is_leaf for parameter in back.parameters())
    assert is_same(dict(model.state_dict()), dict(back.state_dict()))
