"""What torch's accelerators (CUDA and its like) keep, as flat bytes that are copied to and from this machine's memory.

All that is asked of torch about devices is asked here.

A1. Copies run on a stream of their own: they hold up nothing that the owner has queued, or will queue.
A2. Each first waits for what has been queued so far on the stream that was current where the tensor was looked at, by
    whoever registered or named it. So who reads sees what the kernels before have made, and who writes overwrites
    nothing that one of them has yet to read. What other streams do is for their users to wait for.
A3. A copy has ended when it returns: whatever is queued from then on, on any stream, sees it.
"""

import contextlib
import ctypes
import functools
import mmap
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from monarch_async.errors import NoTransport, TransferError

if TYPE_CHECKING:
    import torch


def device_of(tensor: "torch.Tensor") -> str:
    """Return where a tensor is: ``cpu``, ``cuda:0``."""
    return "cpu" if tensor.is_cpu else str(tensor.device)


def stream_of(device: str) -> "torch.Stream | None":
    """Return the current stream of a device; None where its kind has none."""
    import torch

    try:
        return torch.accelerator.current_stream(torch.device(device))
    except (RuntimeError, NotImplementedError):  # not the accelerator of this process
        return None


def check_device(device: str, where: str) -> None:
    """Raise NoTransport where this process has no such device."""
    import torch

    kind, _, index = device.partition(":")
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if here is None or here.type != kind:
        has = "no accelerator" if here is None else f"{here.type} only"
        raise NoTransport(where, {device: f"this process has {has}"})
    count = torch.accelerator.device_count()
    if index and not (index.isdecimal() and int(index) < count):
        raise NoTransport(where, {device: f"there are {count} of its kind"})


def empty_on(device: str, shape: Sequence[int], steps: Sequence[int], dtype: "torch.dtype") -> "torch.Tensor":
    """Return a new tensor on a device; ``steps`` are its strides in elements."""
    import torch

    return torch.empty_strided(shape, steps, dtype=dtype, device=device)


def empty_pinned(shape: Sequence[int], steps: Sequence[int], dtype: "torch.dtype") -> "torch.Tensor":
    """Return a new tensor in memory of this machine that its accelerator copies from and to directly."""
    import torch

    return torch.empty_strided(shape, steps, dtype=dtype, pin_memory=True)


def allocate_block(device: str, size: int) -> memoryview:
    """Return memory of this machine that a device copies to and from at full speed; freed with its last view.

    It has ordinary pages, which CUDA is told of: of what its own allocator maps it is not certain that the kernel lets
    other processes read it, as CMA does.
    """
    import torch

    memory = (ctypes.c_char * size).from_buffer(mmap.mmap(-1, size))
    address, library = ctypes.addressof(memory), torch.cuda.cudart() if device.startswith("cuda") else None
    if library is None or int(library.cudaHostRegister(address, size, 1)):  # for all devices
        return empty_pinned((size,), (1,), torch.uint8).numpy().data
    weakref.finalize(memory, library.cudaHostUnregister, address).atexit = False
    return memoryview(memory).cast("B")


class Queue:
    """Copies between one device and this machine's memory; see the module."""

    def __init__(self, device: str, stream: "torch.Stream") -> None:
        """``stream`` is whose work copies wait for."""
        import torch

        self._before = stream
        self._own = torch.Stream(torch.device(device))

    def copy(self, into: "torch.Tensor", source: "torch.Tensor") -> None:
        """Copy flat bytes, one of which is on the device. On any thread."""
        self._own.wait_stream(self._before)
        with on_stream(self._own):
            into.copy_(source, non_blocking=True)
            ended = self._own.record_event()
        ended.synchronize()


@functools.lru_cache(maxsize=64)
def open_queue(device: str, stream: "torch.Stream | None") -> Queue:
    """Return the queue for a device, and the stream whose work comes first. Raises NoTransport where it has no streams.

    There is one for each such pair, as CUDA itself has a few streams only.
    """
    if stream is None:
        raise NoTransport("memory of a device", {device: "torch knows no streams of such a device; use a CPU copy"})
    return Queue(device, stream)


@contextlib.contextmanager
def on_stream(stream: "torch.Stream | None") -> Iterator[None]:
    """Queue what this thread does in the block on a stream, if there is one."""
    if stream is None:
        yield
        return
    import torch

    here = torch.accelerator.current_stream()
    there = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(there)
        torch.accelerator.set_stream(here)


class Part(NamedTuple):
    """Some bytes of one device, or of this machine; ``device`` is ``cpu`` then."""

    storage: "torch.Tensor"  #: the bytes of the whole storage they are in
    start: int  #: in there
    size: int
    device: str
    stream: "torch.Stream | None"  #: that copies come after


class AcceleratorMemory:
    """Parts end to end, of which some are on devices. What `bulk.device.DeviceMemory` asks for."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Raises NoTransport where torch cannot copy from or to one of the devices as it is needed here."""
        self._parts = tuple(parts)
        self._starts = list(accumulate((part.size for part in parts), initial=0))
        self._queues = [None if part.device == "cpu" else open_queue(part.device, part.stream) for part in parts]
        devices = [part.device for part in parts]
        #: Such as ``cuda:0``; several with commas between.
        self.device = ",".join(sorted(set(devices), key=lambda device: (device == "cpu", device)))
        self._first = next((device for device in devices if device != "cpu"), "cpu")
        #: (address, bytes, device) of each part.
        self.places = tuple((part.storage.data_ptr() + part.start, part.size, part.device) for part in parts)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._starts[-1]

    def allocate(self, size: int) -> memoryview:
        """Return memory of this machine for copies; see `allocate_block`."""
        return allocate_block(self._first, size)

    def copy_out(self, offset: int, into: memoryview) -> None:
        """Copy bytes to memory of this machine. On any thread."""
        self._each(offset, into, _copy)

    def copy_in(self, offset: int, source: memoryview) -> None:
        """Copy bytes from memory of this machine. On any thread."""
        if source.readonly:
            source = memoryview(bytearray(source))  # torch warns of any other
        self._each(offset, source, lambda queue, here, there: _copy(queue, there, here))

    def _each(
        self, offset: int, memory: memoryview, move: "Callable[[Queue | None, torch.Tensor, torch.Tensor], None]"
    ) -> None:
        import torch

        if not len(memory):
            return
        here = torch.frombuffer(memory, dtype=torch.uint8)
        index, done = bisect_right(self._starts, offset) - 1, 0
        while done < len(memory):
            part, inside = self._parts[index], offset + done - self._starts[index]
            count = min(part.size - inside, len(memory) - done)
            if count:
                start = part.start + inside
                if start + count > part.storage.untyped_storage().nbytes():  # torch itself would not look
                    raise TransferError("memory of a device", "its tensor has been resized since it was registered")
                move(self._queues[index], here[done : done + count], part.storage[start : start + count])
            done += count
            index += 1


def _copy(queue: Queue | None, into: "torch.Tensor", source: "torch.Tensor") -> None:
    if queue is None:
        into.copy_(source)
    else:
        queue.copy(into, source)


def bytes_of_storage(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the bytes of all the storage that a tensor is in; keeps that alive."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
