"""Nested arrays that travel as the flat memory they lie in, under one description for all of them.

Pickled one by one, a few hundred arrays cost a few milliseconds at either end. Packed ones are their `Layout` and few
large buffers, and whoever gets them may do without making any arrays at all: he copies the bytes to where he has
arrays of his own. Arrays that share memory (tied weights) are in there once.
"""

import functools
import pickle
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from monarch_async.wire.array import Leaf, Memory, array_over
from monarch_async.wire.exchange import Exchange, reading
from monarch_async.wire.layout import Layout, Tree, find_arrays, grow, lay_out_arrays, pair_up
from monarch_async.wire.strided import Run, Take
from monarch_async.wire.tensor import Buffer, writable


class Packed:
    """A layout, and the memory it speaks of: ``spans``, end to end. Pickles; the spans go beside the pickle."""

    __slots__ = ("_anchors", "_header", "_starts", "layout", "spans")

    def __init__(self, header: bytes, spans: Sequence[memoryview], anchors: object = None) -> None:
        """``header`` is the layout, pickled. ``anchors`` keep the memory in place."""
        self.layout, self.spans = _load_layout(header), tuple(spans)
        self._header, self._anchors = header, anchors
        self._starts = list(accumulate(map(len, self.spans), initial=0))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._header, *map(pickle.PickleBuffer, self.spans))

    @property
    def nbytes(self) -> int:
        """Bytes of all spans."""
        return self._starts[-1]

    def cut(self, runs: Sequence[Run]) -> list[memoryview]:
        """Return these runs of the spans, in pieces."""
        pieces = []
        for start, length in runs:
            index = bisect_right(self._starts, start) - 1
            while length:
                within = start - self._starts[index]
                piece = self.spans[index][within : within + length]
                pieces.append(piece)
                start, length, index = start + len(piece), length - len(piece), index + 1
        return pieces

    def reading(self, into: object, take: Take, what: str, role: str) -> Exchange:
        """Return what copies it to ``into``, arrays of the same structure: its ``runs`` are for `cut`.

        Raises BufferMismatch and BadCall, about ``what``, where that is none; ``role`` says what ``into`` is.
        """
        return reading(pair_up(self.layout, into, what, role), take, what)

    def value(self) -> object:
        """Return it as it was, made of arrays over the spans; those of numpy are read-only."""
        return grow(self.layout, self._array)

    def _array(self, leaf: Leaf) -> object:
        start, extent = leaf.place.bounds()
        pieces = self.cut([(start, extent)])
        memory = pieces[0] if len(pieces) == 1 else memoryview(bytearray().join(pieces))
        place = leaf.place.moved(-start)
        if leaf.library == "numpy":
            memory = memory.toreadonly()
        array = array_over(leaf.library, leaf.dtype, place, memory)
        if array.address % leaf.place.itemsize:  # of a view of another dtype's memory
            array = array_over(leaf.library, leaf.dtype, place, memoryview(bytearray(memory)))
        return array.value


class Packing:
    """Nested arrays that are about to be packed. Those of devices, and those with gaps, are copied first."""

    def __init__(self, value: object, what: str, take: Take) -> None:
        """Copies go to memory of ``take``. Raises BadCall of ``what`` where something is no array, saying where."""
        self._tree: Tree
        self._tree, self._found = find_arrays(value, what)
        self.copies: list[tuple[Memory, Memory]] = []  #: (to, from)
        copied: dict[tuple[object, ...], Memory] = {}
        for index, memory in enumerate(self._found):
            if not memory.is_flat and memory.place.nbytes:
                key = memory.device, memory.address, memory.dtype, memory.place
                if key not in copied:
                    copied[key] = memory.flattened(take)
                    self.copies.append((copied[key], memory))
                self._found[index] = copied[key]

    @property
    def copied_bytes(self) -> int:
        """Bytes that `copy` copies."""
        return sum(into.place.nbytes for into, _ in self.copies)

    def copy(self) -> None:
        """Copy what has to be. On any thread."""
        for into, source in self.copies:
            into.copy_from(source)

    def finish(self) -> Packed:
        """Return the packed arrays: their memory as it is, which must not change until it has been copied."""
        registered = lay_out_arrays(self._tree, self._found)
        return Packed(_dump_layout(registered.layout), registered.spans, registered.anchors)


class Unpacked(Packed):
    """The same, which is what it was made of again where it is unpickled: see `Packed.value`."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        _, arguments = super().__reduce__()
        return _restore_value, arguments


def pack_layout(layout: Layout, memory: memoryview) -> Unpacked:
    """Return ``memory`` as the value of this layout that it will be."""
    return Unpacked(_dump_layout(layout), [memory])


def _restore(header: bytes, *spans: Buffer) -> Packed:
    return Packed(header, [memoryview(writable(span)) for span in spans])


def _restore_value(header: bytes, *spans: Buffer) -> object:
    return _restore(header, *spans).value()


@functools.lru_cache(maxsize=16)
def _dump_layout(layout: Layout) -> bytes:
    """One version of a model's weights is laid out as the one before."""
    return pickle.dumps(layout, pickle.HIGHEST_PROTOCOL)


@functools.lru_cache(maxsize=16)
def _load_layout(header: bytes) -> Layout:
    return pickle.loads(header)
