"""Nested arrays on devices as flat memory: a fake accelerator's, whose copies are plain ones."""

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from monarch_async.errors import NoTransport, TransferError
from monarch_async.wire import accelerator
from monarch_async.wire.accelerator import AcceleratorMemory
from monarch_async.wire.exchange import reading, writing
from monarch_async.wire.layout import describe, pair_up

On = Callable[[str, torch.Tensor], torch.Tensor]


class Plain:
    """Copies at once."""

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        into.copy_(source)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> On:
    """Says that a tensor is on a device."""
    devices: dict[int, tuple[str, torch.Tensor]] = {}

    def on(device: str, tensor: torch.Tensor) -> torch.Tensor:
        devices[tensor.untyped_storage().data_ptr()] = device, tensor
        return tensor

    def device_of(tensor: torch.Tensor) -> str:
        return devices.get(tensor.untyped_storage().data_ptr(), ("cpu", None))[0]

    monkeypatch.setattr(accelerator, "device_of", device_of)
    monkeypatch.setattr(accelerator, "open_queue", lambda device, stream: Plain())
    return on


def beyond(value: Any) -> AcceleratorMemory:
    registered = describe(value, "register")
    assert registered.beyond is not None and not registered.spans
    return registered.beyond


def test_a_tree_on_several_devices_is_one_space(on: On) -> None:
    flat = on("fake:0", torch.arange(20, dtype=torch.int32))
    step = numpy.arange(3, dtype="i8")
    value = {"tail": flat[12:], "w": on("fake:1", torch.ones(4, 4).t()), "step": step, "head": flat[:12], "tied": flat}
    memory = beyond(value)
    assert memory.device == "fake:0,fake:1,cpu" and memory.size == 80 + 64 + 24
    assert memory.places == (
        (flat.data_ptr(), 80, "fake:0"), (value["w"].data_ptr(), 64, "fake:1"), (step.ctypes.data, 24, "cpu"),
    )  # fmt: skip
    layout = describe(value, "register").layout
    assert [leaf.place.offset for leaf in layout.leaves] == [48, 80, 144, 0, 0]
    assert [leaf.device for leaf in layout.leaves] == ["fake:0", "fake:1", "cpu", "fake:0", "fake:0"]


def test_any_piece_of_it_is_copied(on: On) -> None:
    parts = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in (9, 17, 1, 64)]
    for index in (0, 2, 3):
        on(f"fake:{index % 2}", parts[index])
    memory = beyond(parts)
    mirror = bytearray(b"".join(part.numpy().tobytes() for part in parts))
    dice = random.Random(1)
    for _ in range(300):
        start = dice.randrange(memory.size + 1)
        length = dice.randrange(memory.size + 1 - start)
        got = bytearray(length)
        memory.copy_out(start, memoryview(got))
        assert got == mirror[start : start + length]
        mirror[start : start + length] = sent = dice.randbytes(length)
        memory.copy_in(start, memoryview(bytearray(sent)))
    assert b"".join(part.numpy().tobytes() for part in parts) == mirror


def test_read_only_sources(on: On) -> None:
    memory = beyond(on("fake:0", torch.zeros(4, dtype=torch.uint8)))
    memory.copy_in(1, memoryview(bytearray(b"ab")).toreadonly())
    got = bytearray(4)
    memory.copy_out(0, memoryview(got))
    assert got == b"\0ab\0"


def test_memory_of_another_storage_is_never_one_span(on: On) -> None:
    """As each span is copied as part of one storage; neighbours on a device are neighbours by chance."""
    both = torch.zeros(16, dtype=torch.uint8)
    halves = [torch.frombuffer(both.numpy(), dtype=torch.uint8, count=8, offset=8 * i) for i in range(2)]
    for half in halves:
        on("fake:0", half)
    assert [size for _, size, _ in beyond(halves).places] == [8, 8]
    assert beyond([halves[0], halves[0][2:4]]).size == 8


def test_a_tensor_that_has_been_resized_is_not_touched(on: On) -> None:
    tensor = on("fake:0", torch.zeros(100, dtype=torch.uint8))
    memory = beyond(tensor)
    tensor.untyped_storage().resize_(10)
    memory.copy_out(0, memoryview(bytearray(10)))
    with pytest.raises(TransferError, match="resized"):
        memory.copy_out(0, memoryview(bytearray(11)))


def test_a_device_without_streams() -> None:
    accelerator.open_queue.cache_clear()
    with pytest.raises(NoTransport, match="no streams"):
        accelerator.open_queue("odd:0", None)
    assert accelerator.stream_of("cuda:0") is None or torch.cuda.is_available()


def test_what_is_moved_directly(on: On) -> None:
    """Only for who can do that, and only what lies alike at both ends."""
    there = {"a": torch.zeros(6, 5), "b": torch.zeros(6, 5), "c": torch.zeros(3)}
    here = {"a": on("fake:0", torch.ones(6, 5)), "b": on("fake:1", torch.ones(5, 6)).t(), "c": torch.ones(3)}
    pairs = pair_up(describe(there, "register").layout, here, "it", "out")
    images: list[int] = []

    def pinned(shape: Any, steps: Any, dtype: torch.dtype) -> torch.Tensor:
        images.append(1)
        return torch.empty_strided(shape, steps, dtype=dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "empty_pinned", pinned)
        for move in (reading, writing):
            exchange = move(pairs, lambda size: memoryview(bytearray(size)), "it", reaches_devices=True)
            assert exchange.beyond is not None and exchange.beyond.places == ((here["a"].data_ptr(), 120, "fake:0"),)
            assert exchange.runs_beyond == [(0, 120)] and exchange.nbytes == 252 and len(exchange.copies) == 1
            exchange = move(pairs, lambda size: memoryview(bytearray(size)), "it")
            assert exchange.beyond is None and exchange.nbytes == 252 and len(exchange.copies) == 2
    assert len(images) == 6


class Stream:
    """Says what is done with it."""

    device = torch.device("cpu")

    def __init__(self, *_: object) -> None:
        self.said: list[str] = []

    def wait_stream(self, other: object) -> None:
        self.said.append(f"wait {other}")

    def record_event(self) -> "Stream":
        self.said.append("record")
        return self

    def synchronize(self) -> None:
        self.said.append("synchronize")


def test_copies_come_after_the_owners_work_and_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A1 to A3. What CUDA makes of that, only the tests with a GPU show."""
    current: list[Any] = ["default"]
    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda *device: current[-1])
    monkeypatch.setattr(torch.accelerator, "set_stream", current.append)
    queue = accelerator.Queue("cpu", "the owner's")  # type: ignore[arg-type]

    class Into:
        def copy_(self, source: str, non_blocking: bool) -> None:
            assert current[-1] is queue._own and non_blocking
            queue._own.said.append(f"copy {source}")  # type: ignore[attr-defined]

    queue.copy(Into(), "bytes")  # type: ignore[arg-type]
    assert queue._own.said == ["wait the owner's", "copy bytes", "record", "synchronize"]  # type: ignore[attr-defined]
    assert current[-1] == "default"


def test_blocks_are_pages_that_cuda_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[int, int] = {}

    class Library:
        status = 0

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            if not self.status:
                known[address] = size
            return self.status

        def cudaHostUnregister(self, address: int) -> int:
            del known[address]
            return 0

    library = Library()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: library)
    monkeypatch.setattr(accelerator, "empty_pinned", lambda shape, steps, dtype: torch.full(shape, 7, dtype=dtype))
    block = accelerator.allocate_block("cuda:1", 1 << 16)
    piece = block[8:16]
    piece[:] = b"whatever"
    assert list(known.values()) == [1 << 16]
    del block
    assert known and bytes(piece) == b"whatever"
    del piece
    assert not known
    library.status = 1
    assert accelerator.allocate_block("cuda:1", 3).tobytes() == b"\7\7\7"
    assert accelerator.allocate_block("xpu:0", 3).tobytes() == b"\7\7\7"
