"""Private memory for what arrives, kept warm.

Fresh pages cost more than the copy into them (1.4 GB/s against 17), so blocks come from a small pool of `mmap`s with
huge pages asked for, and go back to it when the last view of them dies.
"""

import ctypes
import mmap
import weakref
from pickle import PickleBuffer
from threading import RLock

#: Smaller blocks come from malloc, which keeps them warm itself.
_SMALLEST = 1 << 20


class BlockPool:
    """Memory blocks for payloads, reused while their pages are warm. ``limit`` bounds the bytes kept idle.

    Any thread may take blocks, and the last view of one may die on any.
    """

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit = limit
        self._idle: dict[int, list[mmap.mmap]] = {}
        self.idle_bytes = 0
        self._lock = RLock()  # a collection while it is held may give back another block

    def take(self, size: int) -> memoryview:
        """Return writable memory of ``size`` bytes; it returns to the pool when nobody refers to it any more."""
        if size < _SMALLEST:
            return memoryview(bytearray(size))
        rounded = _round_up(size)
        block = None
        with self._lock:
            idle = self._idle.get(rounded)
            if idle:
                block = idle.pop()
                self.idle_bytes -= rounded
        if block is None:
            block = mmap.mmap(-1, rounded, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones get no huge pages
            if hasattr(mmap, "MADV_HUGEPAGE"):
                block.madvise(mmap.MADV_HUGEPAGE)
        owner = (ctypes.c_char * rounded).from_buffer(block)
        weakref.finalize(owner, self._give_back, rounded, block).atexit = False
        return PickleBuffer(owner).raw()[:size]

    def _give_back(self, rounded: int, block: mmap.mmap) -> None:
        with self._lock:
            if self.idle_bytes + rounded <= self._limit:
                self._idle.setdefault(rounded, []).append(block)
                self.idle_bytes += rounded


def _round_up(size: int) -> int:
    """Round to the next of eight steps per power of two: few sizes, little waste."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step
