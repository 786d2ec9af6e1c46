"""Pages of a file in memory, mapped while anybody has a view of them.

Python's own `mmap` keeps a descriptor for each mapping, and holds the interpreter's lock while it works: a process may
have thousands of shared objects mapped, and populating one takes longer than anybody waits for that lock.

Pages of 2 MiB make the difference between 0.1 and 1.4 ms per MiB for new memory, between 0.2 and 40 ms for mapping 100
MB that others have filled, and a factor of two for who reads them by `cma`. Systems give none to shared memory by
themselves, but do (Linux 6.1) when asked for those of certain addresses, which must be multiples of their size.
"""

import asyncio
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
from monarch_async.bulk.region import Region, Regions
from monarch_async.errors import StaleHandle

#: Linux 5.14, and 6.1; Python's mmap does not name them.
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE, _MADV_COLLAPSE = 22, 23, 25
_MAP_FIXED, _PROT_NONE = 0x10, 0
#: Large pages that are made before others have their turn.
_STEP = 4
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


@functools.cache
def huge_page() -> int:
    """Return the bytes of a large page."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 2 << 20


def _mmap(address: int | None, size: int, protection: int, flags: int, fd: int) -> int:
    found = _system().mmap(address, size, protection, flags, fd, 0)
    if found is None or found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def map_file(fd: int, size: int, *, is_private: bool, is_writable: bool) -> int:
    """Map the first ``size`` bytes of a file; return where. The descriptor may be closed. Raises OSError."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    flags = mmap.MAP_PRIVATE if is_private else mmap.MAP_SHARED
    huge = huge_page()
    if size < huge:
        return _mmap(None, size, protection, flags, fd)
    room = size + huge
    start = _mmap(None, room, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    try:
        address = _mmap(-(-start // huge) * huge, size, protection, flags | _MAP_FIXED, fd)
    except OSError:
        unmap(start, room)
        raise
    end = address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if address > start:
        unmap(start, address - start)
    unmap(end, start + room - end)
    return address


def unmap(address: int, size: int) -> None:
    """End a mapping."""
    _system().munmap(address, size)


def view_of(address: int, size: int, then: Callable[[], None]) -> memoryview:
    """Return a view of memory; ``then`` is called, on any thread, when no view derived from it is left."""
    owner = (ctypes.c_char * size).from_address(address)
    weakref.finalize(owner, then).atexit = False
    return PickleBuffer(owner).raw()


def enlarge_pages(view: memoryview) -> None:
    """Have memory in large pages from now on, where the system can: its contents move there, and their addresses stay.

    About 0.3 ms per MiB, during which other threads run; what is in large pages already costs nothing.
    """
    huge = huge_page()
    start = -(-address_of(view) // huge) * huge
    size = (address_of(view) + len(view) - start) // huge * huge
    if size > 0:
        _system().madvise(start, size, _MADV_COLLAPSE)


async def enlarge_region(regions: Regions, region: Region) -> None:
    """Have a region's memory in large pages, for those who read it by `cma`; on the plane's loop, step by step.

    Memory that was never touched is allocated by this. Ends where the region is removed meanwhile.
    """
    huge = huge_page()
    for span in region.spans:
        first = -address_of(span) % huge
        for offset in range(first, len(span) - huge + 1, _STEP * huge):
            region.enter()
            try:
                regions.find(region.id, region.stamp)
                enlarge_pages(span[offset : offset + _STEP * huge])
            except StaleHandle:
                return
            finally:
                region.leave()
            await asyncio.sleep(0)


def populate_new(view: memoryview) -> None:
    """Have all pages of a new mapping in memory now, in large ones as far as possible. Raises as `populate`."""
    for offset in range(0, len(view), huge_page()):
        view[offset] = 0  # one page of each is enough for the others to come with it
    enlarge_pages(view)
    populate(view)


def populate(view: memoryview) -> None:
    """Have all pages of a mapping in memory now, at half of what touching them costs.

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
