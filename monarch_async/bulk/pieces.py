"""Views of memory, end to end, as one space of bytes. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from monarch_async.bulk.memory import flat

#: Pieces that are smaller on average are gathered and scattered: a copy costs less than the call for each.
_SMALL_PIECE = 16 << 10


class Pieces:
    """The memory of a transfer: byte n of it is byte n of all ``views`` together."""

    __slots__ = ("_stops", "size", "views")

    def __init__(self, views: Iterable[memoryview]) -> None:
        """``views`` are contiguous; empty ones are left out."""
        self.views = [flat(view) for view in views if view.nbytes]
        self._stops = list(accumulate(map(len, self.views)))
        self.size = self._stops[-1] if self._stops else 0

    def cut(self, start: int, stop: int) -> list[memoryview]:
        """Return the views of bytes ``start`` to ``stop``, which are in range."""
        assert 0 <= start <= stop <= self.size
        found = []
        index = bisect_right(self._stops, start)
        while start < stop:
            view, end = self.views[index], self._stops[index]
            first = start - (end - len(view))
            found.append(view[first : first + stop - start])
            start, index = end, index + 1
        return found


def are_small(pieces: Sequence[memoryview], size: int) -> bool:
    """Return whether ``pieces``, of ``size`` bytes in all, are better moved through one block of memory."""
    return len(pieces) > 1 and size < _SMALL_PIECE * len(pieces)
