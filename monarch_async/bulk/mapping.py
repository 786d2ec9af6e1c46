"""Pages of a file in memory, mapped while anybody has a view of them.

Python's own `mmap` keeps a descriptor for each mapping, and holds the interpreter's lock while it works: a process may
have thousands of shared objects mapped, and populating one takes longer than anybody waits for that lock.
"""

import ctypes
import errno
import functools
import mmap
import os
import weakref
from collections.abc import Callable
from pickle import PickleBuffer
from typing import NamedTuple

from monarch_async.bulk.memory import address_of

#: Linux 5.14; Python's mmap does not name them.
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 0)
_FAILED = ctypes.c_void_p(-1).value


class _System(NamedTuple):
    """The system calls."""

    mmap: Callable[[int | None, int, int, int, int, int], int | None]
    munmap: Callable[[int, int], int]
    madvise: Callable[[int, int, int], int]


@functools.cache
def _system() -> _System:
    library = ctypes.CDLL(None, use_errno=True)
    off_t = ctypes.c_long
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, off_t]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return _System(library.mmap, library.munmap, library.madvise)


def map_file(fd: int, size: int, *, is_private: bool, is_writable: bool) -> int:
    """Map the first ``size`` bytes of a file; return where. The descriptor may be closed. Raises OSError."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    address = _system().mmap(None, size, protection, mmap.MAP_PRIVATE if is_private else mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def unmap(address: int, size: int) -> None:
    """End a mapping."""
    _system().munmap(address, size)


def view_of(address: int, size: int, then: Callable[[], None]) -> memoryview:
    """Return a view of memory; ``then`` is called, on any thread, when no view derived from it is left."""
    owner = (ctypes.c_char * size).from_address(address)
    weakref.finalize(owner, then).atexit = False
    return PickleBuffer(owner).raw()


def ask_for_huge_pages(address: int, size: int) -> None:
    """Have large pages where the system gives them to shared memory (most do not)."""
    if _MADV_HUGEPAGE:
        _system().madvise(address, size, _MADV_HUGEPAGE)


def populate(view: memoryview) -> None:
    """Have all pages of a mapping in memory now, at a third of what touching them costs.

    Raises OSError where there is no memory for them. Does nothing on a Linux older than 5.14.
    """
    if not len(view):
        return
    start = address_of(view)
    first = start & -mmap.PAGESIZE
    advice = _MADV_POPULATE_READ if view.readonly else _MADV_POPULATE_WRITE
    if _system().madvise(first, start + len(view) - first, advice) < 0:
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            raise OSError(number, os.strerror(number))
