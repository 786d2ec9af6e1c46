"""Which bytes of a region go where in local memory: what one transfer moves.

Arrays on both sides may have gaps and any order of axes. Where the pieces are large they move to or from their place
directly. Where they are small, reading takes an *image*: memory of its own in the region's order, gaps included if they
are not too large, from which the elements are copied; writing takes one for the local side only, as the gaps are
others' memory. Memory of a device that lies as it does in the region needs no image: who can, moves it in pieces.
"""

from collections.abc import Sequence
from typing import NamedTuple

from monarch_async.errors import BufferMismatch
from monarch_async.wire.accelerator import AcceleratorMemory, Part
from monarch_async.wire.array import Memory
from monarch_async.wire.strided import Run, Strided, Take, dense, merge

#: Pieces that are fewer than this, or of this size on average, are moved one by one.
_FEW = 64
_LARGE = 2 << 10

#: An image with gaps has at most so many times the bytes that are wanted.
_MOST_GAPS = 16


class Pair(NamedTuple):
    """An array in the region and its counterpart here, of the same shape and dtype."""

    there: Strided
    here: Memory


class Exchange:
    """What one transfer moves: ``runs`` of the region, one after the other, to or from ``views``."""

    __slots__ = ("_parts", "beyond", "copies", "into", "runs", "runs_beyond", "views")

    def __init__(self) -> None:
        """Nothing yet."""
        self.runs: list[Run] = []
        self.views: list[memoryview] = []
        self.copies: list[tuple[Memory, Memory]] = []  #: (to, from), for `copy`
        self.into: list[Memory] = []  #: what it changes here
        self.beyond: AcceleratorMemory | None = None  #: memory of devices, to or from which ``runs_beyond`` are moved
        self.runs_beyond: list[Run] = []
        self._parts: list[Part] = []

    @property
    def nbytes(self) -> int:
        """Bytes that are moved."""
        return sum(map(len, self.views)) + (self.beyond.size if self.beyond is not None else 0)

    @property
    def copied_bytes(self) -> int:
        """Bytes that `copy` copies."""
        return sum(into.place.nbytes for into, _ in self.copies)

    def copy(self) -> None:
        """Copy between images and the arrays they stand for: before writing, after reading."""
        for into, source in self.copies:
            into.copy_from(source)

    def _add(self, runs: Sequence[Run], views: Sequence[memoryview]) -> None:
        self.runs += runs
        self.views += views

    def _takes(self, there: Strided, here: Memory, reaches_devices: bool) -> bool:
        """Add what is one run at either side, where that can be moved directly; return whether it is."""
        run = _simple(there, here)
        if run is None or not (here.is_here or reaches_devices):
            return False
        if here.is_here:
            self._add([run], [here.view()])
        else:
            self.runs_beyond.append(run)
            self._parts.append(here.part(here.address, here.extent))
        return True

    def _finish(self) -> "Exchange":
        self.runs, self.runs_beyond = merge(self.runs), merge(self.runs_beyond)
        if self._parts:
            self.beyond = AcceleratorMemory(self._parts)
        return self


def reading(pairs: Sequence[Pair], take: Take, where: str, *, reaches_devices: bool = False) -> Exchange:
    """Return what reads each pair's array. Raises BufferMismatch where it cannot be written here, or is too scattered.

    ``where`` names the region. ``reaches_devices``: whether you heed `Exchange.beyond`.
    """
    exchange = Exchange()
    for there, here in pairs:
        if not here.is_writable:
            raise BufferMismatch(where, "out is read-only")
        exchange.into.append(here)
        if not there.nbytes:
            continue
        if exchange._takes(there, here, reaches_devices):
            continue
        if here.place.has_overlaps:
            raise BufferMismatch(where, f"elements of out share memory: its strides are {here.place.strides} bytes")
        order = there.order()
        ordered, start, extent = there.permuted(order), *there.bounds()
        is_scattered = _is_scattered(ordered)
        if is_scattered and extent <= _MOST_GAPS * there.nbytes and _is_aligned(there):
            image = here.like(there.moved(-start), take)
            exchange._add([(start, extent)], [image.view()])
            exchange.copies.append((here, image))
        else:
            image = _to_move(here, order, take)
            exchange._add(ordered.runs(), _cut(image, order))
            if image is not here:
                exchange.copies.append((here, image))
    return exchange._finish()


def writing(pairs: Sequence[Pair], take: Take, where: str, *, reaches_devices: bool = False) -> Exchange:
    """Return what writes each pair's array. Raises BufferMismatch where elements there share memory, or are too
    scattered. See `reading`."""
    exchange = Exchange()
    last = {pair.there: pair.here for pair in pairs}  # of several for the same memory the last one is written
    for there, here in last.items():
        if there.has_overlaps:
            raise BufferMismatch(where, f"elements of it share memory: its strides are {there.strides} bytes")
        if not there.nbytes:
            continue
        if exchange._takes(there, here, reaches_devices):
            continue
        order = there.order()
        image = _to_move(here, order, take)
        exchange._add(there.permuted(order).runs(), _cut(image, order))
        if image is not here:
            exchange.copies.append((image, here))
    return exchange._finish()


def _simple(there: Strided, here: Memory) -> Run | None:
    """Return the one run that it is, where both sides are without gaps and in the same order."""
    if there.strides == here.place.strides and here.extent == there.nbytes and there.is_dense:
        return there.bounds()
    return None


def _is_scattered(ordered: Strided) -> bool:
    count = ordered.piece_count
    return count > _FEW and ordered.nbytes < _LARGE * count


def _is_aligned(place: Strided) -> bool:
    return not any(step % place.itemsize for step in place.strides)


def _to_move(here: Memory, order: Sequence[int], take: Take) -> Memory:
    """Return an array whose pieces can be moved one by one: this one, or a new one without gaps in this order."""
    if here.is_here and not _is_scattered(here.place.permuted(order)):
        return here
    return here.like(dense(here.place.itemsize, here.place.shape, order), take)


def _cut(memory: Memory, order: Sequence[int]) -> list[memoryview]:
    view = memory.view()
    return [view[start : start + size] for start, size in merge(memory.place.permuted(order).runs())]
