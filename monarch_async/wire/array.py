"""torch tensors and numpy arrays as memory: where their elements lie, without copying any.

Where an array's dtype has a name that both libraries use, that is what tells dtypes apart, so that an array can be
read into a tensor. Neither library is imported before the first array of its kind.
"""

import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from monarch_async.errors import BadCall, BufferMismatch
from monarch_async.wire import accelerator
from monarch_async.wire.strided import Strided, Take, dense

if TYPE_CHECKING:
    import numpy
    import torch

    Array = torch.Tensor | numpy.ndarray[Any, numpy.dtype[Any]]
    DType = torch.dtype | numpy.dtype[Any]

#: Smaller memory for results comes from malloc, which keeps it warm itself.
_FROM_POOL = 1 << 20


class Leaf(NamedTuple):
    """One array of a registration, as its handle describes it."""

    library: str  #: torch or numpy
    dtype: object  #: its name, or the numpy dtype where it has none of its own
    place: Strided  #: in the region
    device: str = "cpu"  #: where the owner has it

    def real_dtype(self) -> "DType":
        """Return the dtype as its library has it."""
        return _real_dtype(self.library, self.dtype)


class Memory:
    """An array that is here. ``place`` counts from ``address``, and its elements reach over ``extent`` bytes."""

    __slots__ = ("address", "device", "dtype", "extent", "is_writable", "library", "place", "stream", "value")

    def __init__(
        self, value: "Array", library: str, dtype: object, device: str, address: int, place: Strided, writable: bool
    ) -> None:
        """``address`` is where the first element is, in the memory of ``device``."""
        #: Whose work comes before what is done with it here; none for this machine's memory.
        self.stream = None if device == "cpu" else accelerator.stream_of(device)
        start, self.extent = place.bounds()
        self.value, self.library, self.dtype, self.device, self.is_writable = value, library, dtype, device, writable
        self.place = place.moved(-start)
        self.address = address + start

    @property
    def is_here(self) -> bool:
        """Whether it is the memory of this process, and not a device's."""
        return self.device == "cpu"

    @property
    def is_flat(self) -> bool:
        """Whether it is memory of this process without gaps, its axes in whatever order."""
        return self.is_here and self.place.is_dense

    def flattened(self, take: Take) -> "Memory":
        """Return new flat memory for the same elements; `copy_from` fills it."""
        return self.like(dense_like(self.place), take)

    def view(self) -> memoryview:
        """Return its bytes, gaps included; the array must be kept as long."""
        return memory_at(self.address, self.extent)

    def anchor(self) -> object:
        """Return what keeps the memory where it is: while that lives, torch refuses to resize its storage."""
        if self.library == "numpy":
            return self.value
        storage = accelerator.bytes_of_storage(self.value)  # type: ignore[arg-type]
        return storage.numpy() if self.is_here else storage

    def storage(self) -> int:
        """Return what is the same for views of one tensor's memory."""
        if self.library == "numpy":
            return id(self.value)
        return self.value.untyped_storage().data_ptr()  # type: ignore[union-attr]

    def part(self, address: int, size: int) -> accelerator.Part:
        """Return some bytes of its storage, or of this machine's memory."""
        if not self.is_here:
            storage = accelerator.bytes_of_storage(self.value)  # type: ignore[arg-type]
            return accelerator.Part(storage, address - storage.data_ptr(), size, self.device, self.stream)
        import torch

        return accelerator.Part(torch.frombuffer(memory_at(address, size), dtype=torch.uint8), 0, size, "cpu", None)

    def like(self, place: Strided, take: Take) -> "Memory":
        """Return new memory of the same library and dtype, with its elements placed so. ``place`` begins at 0."""
        size = place.bounds()[1]
        if self.is_here:
            return array_over(self.library, self.dtype, place, take(size) if size else memoryview(b""))
        steps = [step // place.itemsize for step in place.strides]
        dtype: Any = _real_dtype("torch", self.dtype)
        tensor = accelerator.empty_pinned(place.shape, steps, dtype)
        return Memory(tensor, "torch", self.dtype, "cpu", tensor.data_ptr(), place, True)

    def copy_from(self, other: "Memory") -> None:
        """Copy the elements of an array of the same library, dtype and shape."""
        if self.library == "numpy":
            import numpy

            numpy.copyto(self.value, other.value)  # type: ignore[arg-type]
            return
        import torch

        with torch.no_grad(), accelerator.on_stream(self.stream or other.stream):
            into, source = _copyable(self.value), _copyable(other.value)
            into.copy_(source)

    def note_change(self) -> None:
        """Its bytes have been changed: what autograd has saved of it is out of date."""
        if self.library == "torch" and not self.value.is_inference():  # type: ignore[union-attr]
            import torch

            torch.autograd.graph.increment_version(self.value)  # type: ignore[arg-type]


def memory_at(address: int, size: int) -> memoryview:
    """Return the bytes at an address. Nothing is kept alive by that."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size else memoryview(b"")


def find_memory(value: object, where: str, what: str) -> Memory:
    """Return where an array's elements are. Raises BadCall of ``what``, naming ``where``, for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _memory_of_tensor(cast("torch.Tensor", value), where, what)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _memory_of_array(cast("numpy.ndarray[Any, Any]", value), where, what)
    raise BadCall(what, f"{where} is neither a tensor nor an array, but {type(value).__qualname__}{_hint(value)}")


def _hint(value: object) -> str:
    if hasattr(value, "state_dict"):
        return ": take its state_dict()"
    if isinstance(value, bytes | bytearray | memoryview):
        return ": wrap it, numpy.frombuffer(it, 'u1')"
    return ": make it a list" if isinstance(value, Iterator) else ""


def _memory_of_tensor(tensor: "torch.Tensor", where: str, what: str) -> Memory:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise BadCall(what, f"{where} is a {tensor.layout} tensor: only strided ones have elements in flat memory")
    if tensor.is_meta or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore
        kind = f"{type(tensor).__name__} on {tensor.device}"
        raise BadCall(what, f"{where} is a {kind}, which has no memory of its own")
    if tensor.is_conj() or tensor.is_neg():
        raise BadCall(what, f"{where} is a lazy view of other values: use its resolve_conj().resolve_neg()")
    size = tensor.itemsize
    place = Strided(size, tuple(tensor.shape), tuple([step * size for step in tensor.stride()]))
    name = _torch_name(tensor.dtype)
    return Memory(tensor, "torch", name, accelerator.device_of(tensor), tensor.data_ptr(), place, True)


def _memory_of_array(array: "numpy.ndarray[Any, Any]", where: str, what: str) -> Memory:
    dtype = array.dtype
    if dtype.hasobject:
        raise BadCall(what, f"{where} is an array of Python objects, which are no flat memory")
    has_name = dtype.isnative and dtype.kind in "biufc"
    place = Strided(dtype.itemsize, array.shape, array.strides)
    name = dtype.name if has_name else dtype
    return Memory(array, "numpy", name, "cpu", array.ctypes.data, place, array.flags.writeable)


def allocate(leaf: Leaf, place: Strided, take: Take, device: str | None, where: str) -> Memory:
    """Return new memory for what is read of a leaf, with its elements placed as in ``place``, which begins at 0.

    On a device it is a tensor, whatever the leaf is. Raises NoTransport where this process has no such device.
    """
    size, steps = place.bounds()[1], [step // place.itemsize for step in place.strides]
    if device is not None and device != "cpu":
        accelerator.check_device(device, where)
        on_device: Any = _real_dtype("torch", leaf.dtype)
        tensor = accelerator.empty_on(device, place.shape, steps, on_device)
        return Memory(tensor, "torch", leaf.dtype, accelerator.device_of(tensor), tensor.data_ptr(), place, True)
    if size >= _FROM_POOL:
        return array_over(leaf.library, leaf.dtype, place, take(size))
    dtype = leaf.real_dtype()
    if leaf.library == "torch":
        import torch

        tensor = torch.empty_strided(place.shape, steps, dtype=dtype)  # type: ignore[arg-type]
        return Memory(tensor, "torch", leaf.dtype, "cpu", tensor.data_ptr(), place, True)
    return array_over("numpy", leaf.dtype, place, memoryview(bytearray(size)))


def array_over(library: str, dtype: object, place: Strided, buffer: memoryview) -> Memory:
    """Make an array whose elements are placed so in ``buffer``, which is writable (for torch)."""
    real = _real_dtype(library, dtype)
    if library == "numpy":
        import numpy

        array = numpy.ndarray(place.shape, real, buffer, place.offset, place.strides)  # type: ignore[call-overload]
        return Memory(array, library, dtype, "cpu", array.ctypes.data, place, True)
    import torch

    steps = [step // place.itemsize for step in place.strides]
    if len(buffer):
        flat = torch.frombuffer(buffer, dtype=real)  # type: ignore[arg-type]
        tensor = flat.as_strided(place.shape, steps, place.offset // place.itemsize)
    else:
        tensor = torch.empty_strided(place.shape, steps, dtype=real)  # type: ignore[arg-type]
    return Memory(tensor, library, dtype, "cpu", tensor.data_ptr(), place, True)


def _copyable(tensor: Any) -> "torch.Tensor":
    """torch cannot copy its sub-byte integers."""
    import torch

    return tensor.detach().view(torch.uint8) if tensor.itemsize == 1 else tensor.detach()


@functools.lru_cache(maxsize=256)
def _real_dtype(library: str, dtype: object) -> "DType":
    if library == "torch":
        import torch

        found = getattr(torch, str(dtype), None)
        if not isinstance(found, torch.dtype):
            raise BufferMismatch("a handle", f"this torch knows no dtype {dtype}")
        return found
    import numpy

    return numpy.dtype(dtype)  # type: ignore[call-overload]


@functools.lru_cache(maxsize=256)
def _torch_name(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


@functools.lru_cache(maxsize=1024)
def dense_like(place: Strided) -> Strided:
    """Return how a copy of such an array lies in memory of its own: without gaps, its axes in the same order."""
    if place.has_overlaps or 0 in place.shape:
        return dense(place.itemsize, place.shape)
    return dense(place.itemsize, place.shape, place.order())
