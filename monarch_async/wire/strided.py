"""Where the elements of an n-d array lie in a space of bytes, and which runs of bytes that makes. Pure.

A *run* is (offset, length). Arrays are described as torch and numpy do it: a shape, and for each axis how many bytes
further the next element is. Slicing changes shape, strides and offset, and moves nothing.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from types import EllipsisType
from typing import NamedTuple

from monarch_async.errors import BufferMismatch

Run = tuple[int, int]

#: Returns writable memory of so many bytes.
Take = Callable[[int], memoryview]

#: What `Strided.take` takes: numpy's basic indexing without new axes and steps backwards.
Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]

#: More runs than this in one transfer are refused: their list alone would take longer than copying everything.
MOST_RUNS = 1 << 20


class Strided(NamedTuple):
    """An array in a space of bytes; ``strides`` and ``offset`` (of its first element) are in bytes."""

    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape, start=self.itemsize)

    def bounds(self) -> Run:
        """Return (offset, length) of the least run that has every element."""
        if 0 in self.shape:
            return self.offset, 0
        low, length = self.offset, self.itemsize
        for size, stride in zip(self.shape, self.strides, strict=True):
            reach = (size - 1) * stride
            if reach < 0:
                low += reach
                length -= reach
            else:
                length += reach
        return low, length

    def order(self) -> tuple[int, ...]:
        """Return the axes, slowest first."""
        return tuple(sorted(range(len(self.shape)), key=lambda axis: -abs(self.strides[axis])))

    def permuted(self, order: Sequence[int]) -> "Strided":
        """Return the same elements with the axes in another order."""
        shape, strides = self.shape, self.strides
        return self._replace(shape=tuple(shape[a] for a in order), strides=tuple(strides[a] for a in order))

    def moved(self, by: int) -> "Strided":
        """Return it so many bytes further."""
        return self._replace(offset=self.offset + by)

    @property
    def is_dense(self) -> bool:
        """Whether it is one run without gaps, its axes in whatever order."""
        return _is_dense(self)

    @property
    def has_overlaps(self) -> bool:
        """Whether elements may share bytes, as those of an expanded tensor do."""
        reach = self.itemsize
        for axis in reversed(self.order()):
            size, step = self.shape[axis], abs(self.strides[axis])
            if size > 1:
                if step < reach:
                    return self.nbytes > 0
                reach = (size - 1) * step + reach
        return False

    @property
    def piece_count(self) -> int:
        """How many runs `runs` returns."""
        return 0 if 0 in self.shape else prod(size for size, _ in _blocks(self)[1])

    def runs(self) -> list[Run]:
        """Return its elements as runs, in the order of its axes. Raises BufferMismatch for more than `MOST_RUNS`."""
        if 0 in self.shape:
            return []
        block, outer = _blocks(self)
        if self.piece_count > MOST_RUNS:
            raise BufferMismatch(
                f"{self.nbytes} bytes of an array of shape {self.shape}",
                f"they lie in more than {MOST_RUNS} pieces: make it contiguous, or take a larger slice of it",
            )
        starts = [self.offset]
        for size, stride in outer:
            steps = range(0, size * stride, stride) if stride else (0,) * size
            starts = [start + step for start in starts for step in steps]
        return [(start, block) for start in starts]

    def take(self, index: Index, what: str) -> "Strided":
        """Return the part that ``array[index]`` is. Raises BufferMismatch, about ``what``, where there is none."""
        parts = index if isinstance(index, tuple) else (index,)
        given = sum(part is not Ellipsis for part in parts)
        if len(parts) - given > 1:
            raise BufferMismatch(what, f"slice {_text(index)} has more than one ellipsis")
        if given > len(self.shape):
            raise BufferMismatch(what, f"slice {_text(index)} has {given} indices, the shape {self.shape} fewer axes")
        shape, strides, offset, axis = [], [], self.offset, 0
        for part in parts if given < len(parts) else (*parts, Ellipsis):
            if part is Ellipsis:
                skipped = axis + len(self.shape) - given
                shape += self.shape[axis:skipped]
                strides += self.strides[axis:skipped]
                axis = skipped
                continue
            size, stride = self.shape[axis], self.strides[axis]
            if isinstance(part, slice):
                start, stop, step = _bounds_of(part, size, what, index)
                count = len(range(start, stop, step))
                offset += start * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
            else:
                offset += _position(part, size, axis, what, index) * stride
            axis += 1
        return Strided(self.itemsize, tuple(shape), tuple(strides), offset)


def dense(itemsize: int, shape: Sequence[int], order: Sequence[int] | None = None) -> Strided:
    """Return the array of this shape without gaps, its axes from slowest to fastest as in ``order``."""
    order = range(len(shape)) if order is None else order
    steps = list(accumulate((max(shape[axis], 1) for axis in reversed(order)), operator.mul, initial=itemsize))
    strides = dict(zip(reversed(order), steps, strict=False))
    return Strided(itemsize, tuple(shape), tuple(strides[axis] for axis in range(len(shape))))


def merge(runs: Sequence[Run]) -> list[Run]:
    """Return the same bytes in the same order, neighbours that continue each other as one, empty ones left out."""
    merged: list[Run] = []
    for start, length in runs:
        if merged and merged[-1][0] + merged[-1][1] == start:
            merged[-1] = merged[-1][0], merged[-1][1] + length
        elif length:
            merged.append((start, length))
    return merged


@functools.lru_cache(maxsize=1024)
def _is_dense(array: Strided) -> bool:
    if 0 in array.shape:
        return True
    return array.offset == array.bounds()[0] and not _blocks(array.permuted(array.order()))[1]


def _blocks(array: Strided) -> tuple[int, list[tuple[int, int]]]:
    """Return the bytes that its fastest axes make one run of, and the (size, stride) of what is left, slowest first.

    Neighbouring axes that are one axis in memory are one here.
    """
    block = array.itemsize
    outer: list[tuple[int, int]] = []
    for size, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        if size == 1:
            continue
        if not outer and stride == block:
            block *= size
        elif outer and stride == outer[-1][0] * outer[-1][1]:
            outer[-1] = outer[-1][0] * size, outer[-1][1]
        else:
            outer.append((size, stride))
    outer.reverse()
    return block, outer


def _bounds_of(part: slice, size: int, what: str, index: Index) -> tuple[int, int, int]:
    try:
        start, stop, step = part.indices(size)
    except (TypeError, ValueError) as error:
        raise BufferMismatch(what, f"slice {_text(index)}: {error}") from None
    if step < 0:
        raise BufferMismatch(what, f"slice {_text(index)} goes backwards: steps must be positive")
    return start, stop, step


def _position(part: object, size: int, axis: int, what: str, index: Index) -> int:
    try:
        if isinstance(part, bool):
            raise TypeError
        place = operator.index(part)  # type: ignore[arg-type]
    except TypeError:
        raise BufferMismatch(what, f"slice {_text(index)}: {part!r} is neither an int, a slice nor ...") from None
    if not -size <= place < size:
        raise BufferMismatch(what, f"slice {_text(index)}: {place} is out of range for axis {axis} of size {size}")
    return place + size if place < 0 else place


def _text(index: Index) -> str:
    """Return an index as one writes it: ``[1:5, ..., 0]``."""
    parts = index if isinstance(index, tuple) else (index,)
    texts = []
    for part in parts:
        if isinstance(part, slice):
            ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
            texts.append(":".join(ends) + ("" if part.step is None else f":{part.step}"))
        else:
            texts.append("..." if part is Ellipsis else repr(part))
    return f"[{', '.join(texts)}]"
