"""An accelerator "fake" with two devices, put where torch would give one: its memory is tensors that only copies reach.

What `monarch_async.wire.accelerator` asks of torch is answered here; all else is as with a real one.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from monarch_async.errors import NoTransport
from monarch_async.wire import accelerator

COUNT = 2


class FakeAccelerator:
    """Of this process. ``hold``: cleared, copies wait."""

    def __init__(self) -> None:
        self.kind = "fake"
        self._devices: dict[int, str] = {}  # by storage
        self._kept: list[torch.Tensor] = []
        self.copies: list[tuple[str, str, int]] = []  # device, "in" or "out", bytes
        self.blocks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.pinned = 0
        self.begun, self.hold = threading.Event(), threading.Event()
        self.hold.set()

    def install(self, put: Callable[[object, str, object], None]) -> None:
        """``put`` is setattr, or a monkeypatch's."""
        for name in ("device_of", "stream_of", "check_device", "empty_on", "empty_pinned", "allocate_block"):
            put(accelerator, name, getattr(self, name))
        put(accelerator, "open_queue", lambda device, stream: Queue(self, device))

    def on(self, device: str, tensor: torch.Tensor) -> torch.Tensor:
        """Say that a tensor, and all views of it, are on a device."""
        self._devices[tensor.untyped_storage().data_ptr()] = device
        self._kept.append(tensor)  # nothing else comes to its address
        return tensor

    def device_of(self, tensor: torch.Tensor) -> str:
        return self._devices.get(tensor.untyped_storage().data_ptr(), "cpu")

    def stream_of(self, device: str) -> None:
        return None

    def check_device(self, device: str, where: str) -> None:
        if device not in ("fake", *(f"fake:{index}" for index in range(COUNT))):
            raise NoTransport(where, {device: "this process has fake only"})

    def empty_on(self, device: str, shape: Any, steps: Any, dtype: torch.dtype) -> torch.Tensor:
        return self.on(device, torch.empty_strided(shape, steps, dtype=dtype))

    def empty_pinned(self, shape: Any, steps: Any, dtype: torch.dtype) -> torch.Tensor:
        self.pinned += 1
        return torch.empty_strided(shape, steps, dtype=dtype)

    def allocate_block(self, device: str, size: int) -> memoryview:
        assert threading.current_thread() is not threading.main_thread(), "that takes a while"
        assert device.startswith(f"{self.kind}:")
        memory = (ctypes.c_char * size)()
        self.blocks[ctypes.addressof(memory)] = memory
        return memoryview(memory).cast("B")


class Queue:
    """See `accelerator.Queue`."""

    def __init__(self, fake: FakeAccelerator, device: str) -> None:
        self._fake, self._device = fake, device

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        fake, device = self._fake, self._device
        assert threading.current_thread() is not threading.main_thread()
        assert threading.current_thread().name != "data plane", "copies would stop the plane"
        to, come = fake.device_of(into), fake.device_of(source)
        assert {to, come} == {device, "cpu"}, "one side is this queue's"
        fake.copies.append((device, "in" if to == device else "out", len(into)))
        fake.begun.set()
        assert fake.hold.wait(10)
        into.copy_(source)


def each(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nested value."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for child in value.values() if isinstance(value, dict) else value:
            yield from each(child)
