"""Addresses of memory, and copying without the interpreter's lock."""

import ctypes
from collections.abc import Iterator, Sequence

#: A copy of up to this size takes less time than giving up the interpreter's lock for it may.
_SMALL = 64 << 10

#: Where parts of one stretch of memory may begin: tensors want that, and caches.
_ALIGNMENT = 64


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer, which says where read-only memory is; nothing else in the library does."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def address_of(view: memoryview) -> int:
    """Return where memory begins; 0 where it is empty. ``view`` is flat and contiguous, and may be read-only."""
    if not len(view):
        return 0
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    info = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(info), 0)
    try:
        return info.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(info))


def copy(into: memoryview, source: memoryview) -> None:
    """Copy bytes between views of the same length; other threads run meanwhile where that takes long."""
    if len(into) <= _SMALL:
        into[:] = source
    else:
        assert len(into) == len(source) and not into.readonly
        ctypes.memmove(address_of(into), address_of(source), len(into))


def pair(
    into: Sequence[memoryview], source: Sequence[memoryview], most: int
) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield (into, source) pieces of equal length, at most ``most`` bytes, of sequences that are cut differently."""
    left, right = iter(into), iter(source)
    here, there = memoryview(b""), memoryview(b"")
    while True:
        while not len(here):
            if (found := next(left, None)) is None:
                return
            here = found
        while not len(there):
            if (found := next(right, None)) is None:
                return
            there = found
        size = min(len(here), len(there), most)
        yield here[:size], there[:size]
        here, there = here[size:], there[size:]


def flat(view: memoryview) -> memoryview:
    """Return contiguous memory as a flat view of bytes."""
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where parts of these sizes begin when they lie in one stretch of memory, aligned, and its length."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end
