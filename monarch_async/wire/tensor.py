"""A torch tensor as a small header and its bytes, and back; the bytes are the tensor's own memory.

The header is msgpack: torch dtype, shape, order, flags, device, and an *Arrow prefix*: the metadata of an
Arrow IPC tensor message, padded to 64 bytes. Prefix and body one after the other are that message, so any
Arrow reader can read a tensor that was kept or sent by us. Arrow knows no bfloat16, fp8, fp4, complex or bool
(pyarrow makes bool uint8): those are uint8 in the prefix, with one more axis for the bytes of an element
where it has several; 0-d is one element.

A dense tensor whose axes are permuted (a transpose, channels_last) travels as the contiguous tensor it is a
permutation of, with ``order`` saying which, so neither end copies and the strides survive. Other views
(steps, expanded, conjugate, negative) are made contiguous first. Quantized, sparse and nested tensors,
and subclasses, are left to torch's own pickling. Neither torch nor pyarrow is imported before the first
tensor.
"""

import functools
import pickle
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import msgpack

if TYPE_CHECKING:
    import torch

Buffer = bytes | bytearray | memoryview

#: Dtypes Arrow has too; everything else is bytes to it.
_ARROW_DTYPES = frozenset(
    ["float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
)
_PARAMETER, _REQUIRES_GRAD = 1, 2
_MOST_HEADERS = 1024

#: By the id of a read-only buffer: the same memory, writable, for tensors alone. See `payload.loads_shared`.
writable_twins: "ContextVar[dict[int, memoryview] | None]" = ContextVar("monarch_async_writable_twins", default=None)

#: Headers by what they say; making one costs 15 microseconds, and training sends the same few shapes.
_headers: dict[tuple[object, ...], bytes] = {}


class Header(NamedTuple):
    """What `describe` wrote. ``order`` lists the axes from slowest to fastest; None if they are in order."""

    dtype: "torch.dtype"
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    is_parameter: bool
    requires_grad: bool
    device: str
    arrow_prefix: bytes


def tensor_types() -> "tuple[type, type] | None":
    """Return ``(torch.Tensor, torch.nn.Parameter)`` if torch is loaded in this process."""
    torch = sys.modules.get("torch")
    try:
        return None if torch is None else (torch.Tensor, torch.nn.Parameter)
    except AttributeError:  # another thread is importing torch right now
        return None


def describe(tensor: "torch.Tensor") -> tuple[bytes, memoryview]:
    """Return header and bytes of a ``torch.Tensor`` or ``Parameter`` (no subclass) of strided layout.

    The memoryview is the tensor's memory where it is dense on the CPU, else that of a contiguous CPU copy.
    From then on torch refuses to resize the storage, so the view stays valid. A meta tensor has no bytes.
    """
    flags = (_REQUIRES_GRAD if tensor.requires_grad else 0) | (_PARAMETER if _is_parameter(tensor) else 0)
    if tensor.is_meta:
        return _header(tensor, None, flags, None), memoryview(b"")
    memory, order = _dense_memory(tensor)
    array = memory.numpy()
    return _header(tensor, order, flags, array), array.data


def restore(header: bytes, buffer: Buffer) -> "torch.Tensor":
    """Rebuild the tensor over ``buffer``, or over a copy where that is read-only or misaligned for the dtype.

    A tensor of another device than the CPU is put on the device of that kind and index here; on the current
    one of the kind where there is no such index; it stays on the CPU where this process has no such kind.
    """
    import torch

    told = parse_header(header)
    if told.device == "meta":
        tensor = torch.empty(told.shape, dtype=told.dtype, device="meta")
    elif 0 in told.shape:
        tensor = torch.empty(told.shape, dtype=told.dtype, device="cpu")
    else:
        tensor = torch.frombuffer(writable(buffer), dtype=told.dtype)
        if tensor.data_ptr() % told.dtype.itemsize:
            tensor = torch.frombuffer(bytearray(buffer), dtype=told.dtype)
        if told.order is None:
            tensor = tensor.view(told.shape)
        else:
            tensor = tensor.view([told.shape[axis] for axis in told.order]).permute(_inverse(told.order))
        if told.device != "cpu":
            tensor = _place(tensor, told.device)
    if told.is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=told.requires_grad)
    return tensor.requires_grad_() if told.requires_grad else tensor


def writable(buffer: Buffer) -> Buffer:
    """Return ``buffer``, or where it is read-only its writable twin, or a copy."""
    if not memoryview(buffer).readonly:
        return buffer
    twins = writable_twins.get()
    return (twins.get(id(buffer)) if twins is not None else None) or bytearray(buffer)


def reduce(tensor: "torch.Tensor") -> "tuple[object, ...] | None":
    """Return pickle's reduction of an exact ``torch.Tensor`` or ``Parameter``; None: leave it to torch.

    Attributes set on the tensor travel; ``grad`` and hooks do not, as with torch's own pickling.
    """
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    header, body = describe(tensor)
    content = (header, pickle.PickleBuffer(body))
    if tensor.__dict__:
        return restore, content, tensor.__dict__, None, None, _set_attributes
    return restore, content


@functools.lru_cache(maxsize=_MOST_HEADERS)
def parse_header(header: bytes) -> Header:
    """Return what a header of `describe` says.

    Raises:
        ValueError: it is none.
    """
    import torch

    name, shape, order, flags, device, prefix = msgpack.unpackb(header, use_list=False)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown tensor dtype {name!r}")
    return Header(dtype, shape, order, bool(flags & _PARAMETER), bool(flags & _REQUIRES_GRAD), device, prefix)


def _dense_memory(tensor: "torch.Tensor") -> "tuple[torch.Tensor, tuple[int, ...] | None]":
    """Return the bytes of ``tensor`` as a 1-d uint8 CPU tensor, and the order of its axes in there."""
    import torch

    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    order = None
    if not (tensor.is_cpu and tensor.is_contiguous()):
        if tensor.itemsize == 1:
            tensor = tensor.view(torch.uint8)  # torch cannot copy its sub-byte integers
        order = _axes_order(tensor)
        tensor = (tensor if order is None else tensor.permute(order)).cpu().contiguous()
    # Not reshape(-1): the axes of a tensor of one element or none may have any stride, and would keep it
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8), order


def _axes_order(tensor: "torch.Tensor") -> tuple[int, ...] | None:
    """Return the axes, slowest first, if that permutation of ``tensor`` is contiguous; None for any other."""
    if tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
    return order if tensor.permute(order).is_contiguous() else None


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _header(tensor: "torch.Tensor", order: tuple[int, ...] | None, flags: int, memory: object) -> bytes:
    key = (tensor.dtype, tensor.shape, order, flags, tensor.device)
    header = _headers.get(key)
    if header is None:
        if len(_headers) >= _MOST_HEADERS:
            _headers.clear()
        name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        prefix = b"" if memory is None else _arrow_prefix(name, shape, order, tensor.itemsize, memory)
        header = msgpack.packb((name, shape, order, flags, str(tensor.device), prefix))
        assert header is not None
        _headers[key] = header
    return header


def _arrow_prefix(
    dtype: str, shape: tuple[int, ...], order: tuple[int, ...] | None, itemsize: int, memory: object
) -> bytes:
    """Return what comes before the body in the Arrow message of a tensor whose bytes are the uint8 array
    ``memory``.

    pyarrow writes whole messages only; a sink with too little room for the body gets just the part wanted
    here.
    """
    import numpy
    import pyarrow

    sizes = shape if order is None else tuple(shape[axis] for axis in order)
    array = numpy.asarray(memory)
    if dtype in _ARROW_DTYPES:
        array = array.view(dtype).reshape(sizes or (1,))
    else:
        array = array.reshape((*sizes, itemsize) if itemsize > 1 else (sizes or (1,)))
    sink = pyarrow.allocate_buffer(512 + 64 * array.ndim)
    try:
        pyarrow.ipc.write_tensor(pyarrow.Tensor.from_numpy(array), pyarrow.FixedSizeBufferWriter(sink))
    except OSError:  # no room for the body
        pass
    written = sink.to_pybytes()
    # An encapsulated message: 0xffffffff, then the length of the padded metadata that follows
    return written[: 8 + int.from_bytes(written[4:8], "little")]


def _place(tensor: "torch.Tensor", device: str) -> "torch.Tensor":
    import torch

    kind, _, index = device.partition(":")
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if here is None or here.type != kind:
        return tensor
    return tensor.to(device if int(index or 0) < torch.accelerator.device_count() else kind)


def _is_parameter(tensor: "torch.Tensor") -> bool:
    types = tensor_types()
    return types is not None and type(tensor) is types[1]


def _set_attributes(tensor: "torch.Tensor", attributes: dict[str, object]) -> None:
    vars(tensor).update(attributes)
